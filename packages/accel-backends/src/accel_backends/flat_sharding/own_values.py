"""This rank's shards of the flat parameters of a model, and the state of an optimizer of them, as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from accel_backends.flat_sharding.flat_model import FlatModel, plain_name
from accel_ops.named_tensors import named_tensors
from accel_state.errors import CheckpointError

_FLAT = "_flat_param"


class RankParts(Mapping[str, Any]):
    """A part of a state, in the form in which this rank holds it: tensors and plain values by their keys.

    The tensors of a model share its memory.

    Args:
        values: The part.
        slices: By the key of each tensor, plain data that describes of which tensors it is a part, and which.
            None if this rank holds no flat parameters.

    Attributes:
        rank: This process.
        num_ranks: How many processes hold the state together.
    """

    def __init__(self, values: Mapping[str, Any], *, slices: Mapping[str, Any] | None) -> None:
        self._values = values
        self.slices = slices
        self.rank = dist.get_rank()
        self.num_ranks = dist.get_world_size()

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @torch.no_grad()
    def fill(self, saved: Mapping[str, Any]) -> None:
        """Copy the values of a state that was sharded alike into the tensors of this one."""
        for key, own in self._values.items():
            own.copy_(saved[key])


def own_model_values(model: FlatModel) -> RankParts:
    """Return the memory of this rank's parts of a model, and of what it holds whole.

    Parameters that an evaluation left gathered are shards again, so that none goes stale when the parts are filled.

    Raises:
        CheckpointError: If a module has state beyond its tensors.
    """
    values: dict[str, Any] = {}
    slices: dict[str, Any] = {}
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
        slices[key] = {
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
            values[key], slices[key] = found.tensor.detach(), {"shape": tuple(found.tensor.shape)}
    return RankParts(values, slices=slices)


def own_optimizer_values(optimizer: torch.optim.Optimizer, models: Sequence[FlatModel]) -> RankParts:
    """Return the state dict of an optimizer on this rank, and of which parameters it has state."""
    owners = {
        number: (index, names) for index, model in enumerate(models) for number, names in model.names.items()
    }
    slices: dict[str, Any] = {
        f"group {number}": [owners.get(id(parameter), (None, ())) for parameter in group["params"]]
        for number, group in enumerate(optimizer.param_groups)
    }
    for index, model in enumerate(models):
        slices[f"model {index}"] = [model.root.sharding_strategy.name, model.root.world_size]
    return RankParts(optimizer.state_dict(), slices=slices)


def _refuse_extra_state(module: nn.Module) -> None:
    if type(module).get_extra_state is not nn.Module.get_extra_state:
        raise CheckpointError(
            f"`{type(module).__name__}` has state beyond its tensors (`get_extra_state`), which "
            '`state_dict_type="LOCAL_STATE_DICT"` does not hold. Save with "FULL_STATE_DICT".'
        )
