"""This rank's parts of the flat parameters of a model, and the state of an optimizer of them, as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from accel_backends.flat_sharding.flat_model import FlatModel, plain_name
from accel_ops.named_tensors import named_tensors
from accel_state.errors import CheckpointError

_FLAT = "_flat_param"

Own = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Values by key, and by key what they are parts of; see `OwnState`."""


def own_model_values(model: FlatModel) -> Own:
    """Return the memory of this rank's parts of a model, and of what it holds whole.

    Parameters that an evaluation left gathered are shards again, so that none goes stale when the parts are filled.

    Raises:
        CheckpointError: If a module has state beyond its tensors.
    """
    values: dict[str, Any] = {}
    cut: dict[str, Any] = {}
    flattened: set[int] = set()
    for module in model.root.modules():
        _refuse_extra_state(module)
    for name, unit in model.units().items():
        handle = unit._handle
        if handle is None:
            continue
        if handle.uses_sharded_strategy and not handle.needs_unshard():
            handle.reshard(free_unsharded_flat_param=True)
            handle.post_reshard()  # type: ignore[no-untyped-call]
        flat = handle.flat_param
        key = f"{name}.{_FLAT}" if name else _FLAT
        values[key] = flat._local_shard.detach()
        cut[key] = {
            "names": list(flat._fqns),
            "shapes": [tuple(shape) for shape in flat._shapes],
            "num_values": values[key].numel(),
            "part": handle.rank,
            "num_parts": handle.world_size,
        }
        flattened |= {id(flat), *map(id, flat._params or ())}
    for found in named_tensors(model.root):
        if found.is_persistent and id(found.tensor) not in flattened:
            key = plain_name(found.names[0])
            values[key], cut[key] = found.tensor.detach(), {"shape": tuple(found.tensor.shape)}
    return values, cut


def own_optimizer_values(optimizer: torch.optim.Optimizer, models: Sequence[FlatModel]) -> Own:
    """Return the state dict of an optimizer on this rank, and of which parameters it has state."""
    owners = {
        number: (index, names) for index, model in enumerate(models) for number, names in model.names.items()
    }
    cut: dict[str, Any] = {
        f"group {number}": [owners.get(id(parameter), (None, ())) for parameter in group["params"]]
        for number, group in enumerate(optimizer.param_groups)
    }
    for index, model in enumerate(models):
        cut[f"model {index}"] = [model.root.sharding_strategy.name, model.root.world_size]
    return optimizer.state_dict(), cut


def _refuse_extra_state(module: nn.Module) -> None:
    if type(module).get_extra_state is not nn.Module.get_extra_state:
        raise CheckpointError(
            f"`{type(module).__name__}` has state beyond its tensors (`get_extra_state`), which "
            '`state_dict_type="LOCAL_STATE_DICT"` does not hold. Save with "FULL_STATE_DICT".'
        )
