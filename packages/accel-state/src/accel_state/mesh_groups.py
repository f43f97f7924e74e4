"""The process groups of device meshes: each rank makes only the groups that it belongs to, each of them once."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from itertools import accumulate
from math import prod
from operator import mul

import torch
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh

_made: weakref.WeakKeyDictionary[  # weak: a destroyed group must not live on here
    dist.ProcessGroup, weakref.WeakValueDictionary[tuple[int, ...], dist.ProcessGroup]
] = weakref.WeakKeyDictionary()
"""The groups by their ranks, for each default group."""


def build_mesh(device_type: str, sizes: Mapping[str, int]) -> DeviceMesh:
    """Build a mesh over all ranks, with process groups. Every rank must call this; it blocks until its peers have.

    `torch.distributed.init_device_mesh` makes every rank create all groups of the run, and all ranks wait for each:
    1,088 times for 8 × 8 × 64 ranks. Here a rank creates one group per axis, for any number of ranks.

    Args:
        device_type: Of the devices that the ranks run on.
        sizes: The size of each axis, outermost first.
    """
    shape = tuple(sizes.values())
    ranks = torch.arange(prod(shape), dtype=torch.int).reshape(shape)
    groups = [_group_of(members) for members in _members(dist.get_rank(), shape)]
    return DeviceMesh.from_group(groups, device_type, ranks, mesh_dim_names=tuple(sizes))


def add_union(mesh: DeviceMesh, name: str) -> None:
    """Flatten ``mesh`` into an axis ``name`` of the mesh that it was sliced from. Every rank must call this.

    `DeviceMesh._flatten` makes every rank create the groups of all ranks, as `init_device_mesh` does, and has no
    argument for it: for its duration, the `new_group` that it calls is replaced.
    """
    called_by_torch = vars(device_mesh)
    real = called_by_torch["new_group"]
    called_by_torch["new_group"] = _group_if_member
    try:
        mesh._flatten(name)
    finally:
        called_by_torch["new_group"] = real  # other callers in torch need the groups of all ranks


def _group_if_member(ranks: list[int], **_options: object) -> dist.ProcessGroup | None:
    return _group_of(tuple(ranks)) if dist.get_rank() in ranks else None


def _members(rank: int, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return for each axis the ranks that differ from ``rank`` on no other axis."""
    strides = list(accumulate(reversed(shape[1:]), mul, initial=1))[::-1]
    return [
        tuple(rank + (coordinate - rank // stride % size) * stride for coordinate in range(size))
        for size, stride in zip(shape, strides, strict=True)
    ]


def _group_of(ranks: tuple[int, ...]) -> dist.ProcessGroup:
    """Return the group of ``ranks``, which include this one; all of them must create their groups in the same order."""
    world = dist.group.WORLD
    assert world is not None
    if len(ranks) == world.size():
        return world  # a second group of all ranks would only cost connections
    known = _made.setdefault(world, weakref.WeakValueDictionary())
    group = known.get(ranks)
    if group is None:
        group = known[ranks] = dist.new_group(list(ranks), use_local_synchronization=True)
    return group
