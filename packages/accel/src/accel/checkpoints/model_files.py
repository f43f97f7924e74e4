"""Copy the weights of a checkpoint into a model."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from accel.checkpoints.prepared import class_name
from accel_backends import Strategy
from accel_bigmodel.offload.placeholders import weight_of
from accel_checkpoint.reading.strictness import Strictness
from accel_ops.shared_tensors import id_tensor_view
from accel_state.errors import CheckpointError


def load_weights(
    strategy: Strategy,
    model: nn.Module,
    state: Mapping[str, Any],
    *,
    file_name: str,
    index: int,
    strict: Strictness,
) -> None:
    """Copy a state dict into a model; reports missing and unexpected keys."""
    bare = strategy.unwrap(model, keep_torch_compile=False)
    into = f"model {index} ({class_name(bare).rpartition('.')[2]})"
    with strict.loading(file_name, into), _without_placeholder_warnings():
        _reject_meta_parameters(bare, into=into)
        outcome = strategy.load_model_state(model, state, strict=False)
        missing = list(outcome.missing_keys) if outcome is not None else []
        unexpected = list(outcome.unexpected_keys) if outcome is not None else []
        if missing:
            tied = _second_names(strategy.model_state(model), state)
            missing = [name for name in missing if name not in tied]
        if missing or unexpected:
            parts = [f"it lacks {_listed(missing)}"] if missing else []
            parts += [f"it has {_listed(unexpected)}, which the model does not have"] if unexpected else []
            strict.report(f"`{file_name}` does not fit model {index}: {'; '.join(parts)}.")


def _reject_meta_parameters(model: nn.Module, *, into: str) -> None:
    """Reject parameters on the meta device, except those of offloaded weights, which can be loaded."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta and weight_of(parameter) is None:
            raise CheckpointError(
                f"`{name}` of {into} is on the meta device, so there is no memory to load it into. "
                "Allocate it first, for example with `to_empty`."
            )


@contextmanager
def _without_placeholder_warnings() -> Iterator[None]:
    """Suppress torch's warning that copying into a meta parameter has no effect; for offloaded weights it has."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*copying from a non-meta parameter in the checkpoint")
        yield


def _second_names(own: Mapping[str, Any], loaded: Mapping[str, Any]) -> set[str]:
    """Return the model's keys whose tensor was loaded under another key, such as those of tied weights."""
    views = {
        id_tensor_view(own[name]) for name in loaded if name in own and isinstance(own[name], torch.Tensor)
    }
    tensors = {name: value for name, value in own.items() if isinstance(value, torch.Tensor)}
    return {name for name, tensor in tensors.items() if id_tensor_view(tensor) in views}


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(f"`{name}`" for name in names[:5]) + more
