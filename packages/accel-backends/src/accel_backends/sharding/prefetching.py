"""Gathering units of a sharded model ahead of their turn, by lists made from the order in which they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch.distributed.fsdp import FSDPModule

from accel_backends.sharding.units import ROOT

if TYPE_CHECKING:
    from torch import nn

    from accel_backends.sharding.units import ShardGroup


def set_prefetching(model: nn.Module, groups: Sequence[ShardGroup], *, forward: int, backward: int) -> None:
    """Make each unit all-gather the units that run after it while it computes; no communication.

    Units are taken to run in the order in which the model lists its modules, the tail last, and backwards in the
    backward pass. Memory for as many more units is needed at the same time.

    Args:
        model: After `shard_model`.
        groups: The groups it was sharded in.
        forward: How many units ahead in the forward pass; 0 leaves it to torch, which begins one when it needs it.
        backward: The same in the backward pass, where torch gathers one unit ahead.
    """
    units = _in_order_of_running(model, groups)
    for index, unit in enumerate(units):
        if forward:
            unit.set_modules_to_forward_prefetch(units[index + 1 : index + 1 + forward])
        if backward:
            unit.set_modules_to_backward_prefetch(units[max(index - backward, 0) : index][::-1])


def _in_order_of_running(model: nn.Module, groups: Sequence[ShardGroup]) -> list[FSDPModule]:
    place = {name: index for index, (name, _) in enumerate(model.named_modules(remove_duplicate=False))}
    ordered = sorted(
        (group for group in groups if ROOT not in group.modules),
        key=lambda group: (group.is_tail, place[group.modules[0]]),
    )
    units = [model.get_submodule(group.modules[0]) for group in ordered]
    return [unit for unit in units if isinstance(unit, FSDPModule)]
