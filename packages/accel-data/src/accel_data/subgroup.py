"""Objects gathered among the ranks that still have a batch."""

from __future__ import annotations

import weakref
from typing import Any

import torch.distributed as dist

from accel_ops.objects import gather_object
from accel_ops.transport import current_transport


class _Groups:
    """Caches process groups for as long as the default group lives."""

    def __init__(self) -> None:
        self._world: weakref.ref[dist.ProcessGroup] | None = None
        self._of_ranks: dict[tuple[int, ...], weakref.ref[dist.ProcessGroup]] = {}

    def of(self, ranks: tuple[int, ...]) -> dist.ProcessGroup:
        """Return the group of ``ranks``; only its members may call it."""
        world = dist.group.WORLD
        assert world is not None, "asked for while several ranks are running"
        if self._world is None or self._world() is not world:
            self._world, self._of_ranks = weakref.ref(world), {}
        cached = self._of_ranks.get(ranks)
        group = None if cached is None else cached()
        if group is None:
            group = dist.new_group(list(ranks), use_local_synchronization=True)
            self._of_ranks[ranks] = weakref.ref(group)
        return group


_groups = _Groups()


def gather_among(ranks: tuple[int, ...], value: Any) -> list[Any]:
    """Return the values of ``ranks``, in their order, on each of them.

    Only these ranks may call it, and all of them must; the others take no part in making the group.
    """
    if len(ranks) == 1:
        return [value]
    if len(ranks) == current_transport().world_size:
        return list(gather_object([value]))
    values: list[Any] = [None] * len(ranks)
    dist.all_gather_object(values, value, group=_groups.of(ranks))
    return values
