"""The state of a flattened model, with the names of the plain model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from accel_backends.flat_sharding.flat_model import FlatModel, plain_name
from accel_backends.flat_sharding.state_dicts import has_sharded_state, state_dicts


def local_model_state(model: FlatModel, *, rank0_only: bool = False) -> dict[str, Any]:
    """Return the state dict of the plain model on the CPU: a `DTensor` where torch can give this rank its shard alone.

    Every rank must call it; one unit is gathered at a time. With ``rank0_only`` full tensors are on rank 0 alone.
    """
    with state_dicts(model.root, is_sharded=has_sharded_state(model.root), rank0_only=rank0_only):
        found = model.root.state_dict()
    state: dict[str, Any] = {}
    for name, value in found.items():
        first = model.aliases.get(name)
        if first in state:
            state[name] = state[first]
        else:
            state[name] = value.detach().cpu() if isinstance(value, torch.Tensor) else value
    return state


def load_model_state(model: FlatModel, state: Mapping[str, Any], *, strict: bool) -> Any:
    """Load a full state, or one from `local_model_state`; every rank must call it.

    Raises:
        RuntimeError: If a tensor has another shape, or with ``strict`` other names, as torch does.
    """
    plain = type(model.root.module).__name__
    problems = [
        f"size mismatch for {name}: {tuple(value.shape)} in the state, {tuple(model.shapes[name])} in the model"
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and name in model.shapes and value.shape != model.shapes[name]
    ]
    _refuse(plain, problems)
    with state_dicts(model.root, is_sharded=any(isinstance(value, DTensor) for value in state.values())):
        outcome = model.root.load_state_dict(dict(state), strict=False)
    for keys in (outcome.missing_keys, outcome.unexpected_keys):
        keys[:] = [plain_name(key) for key in keys]
    if strict:
        _refuse(plain, [f"missing {name}" for name in outcome.missing_keys])
        _refuse(plain, [f"unexpected {name}" for name in outcome.unexpected_keys])
    return outcome


def _refuse(model: str, problems: list[str]) -> None:
    if problems:
        raise RuntimeError(
            f"The state does not fit the {model}: {'; '.join(problems)}. "
            "Load it into the model that it was saved from."
        )
