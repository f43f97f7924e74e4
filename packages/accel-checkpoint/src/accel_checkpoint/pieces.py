"""The local part of sharded tensors, and the position of its pieces in the full tensor."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, overload

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from accel_checkpoint.tensors import DeferredTensor, is_plain, second_names_in
from accel_state.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Piece:
    """One rank's part of one entry of a state dict, or a piece of it: see `runs_of`.

    Attributes:
        name: Its key.
        local: The local part: a plain tensor, or any other value unchanged.
        shape: Global shape of the tensor; empty for other values.
        offset: Start of the part in the global tensor, along each dimension.
        is_writer: Whether this rank writes the part; other ranks may have replicas.
        aliases: Other keys of the same tensor, as for tied weights.
    """

    name: str
    local: Any
    shape: tuple[int, ...] = ()
    offset: tuple[int, ...] = ()
    is_writer: bool = True
    aliases: tuple[str, ...] = ()

    @property
    def is_full(self) -> bool:
        """Whether the local part is the full tensor."""
        return not isinstance(self.local, Tensor) or tuple(self.local.shape) == self.shape


def pieces_of(state: Mapping[str, Any], *, is_writer: bool, first_rank: int = 0) -> Iterator[Piece]:
    """Yield the pieces of a state dict without communication; each shared tensor is yielded once.

    Args:
        state: Tensors, `DTensor`s and other values by name.
        is_writer: Whether this rank writes replicated values.
        first_rank: The first of the ranks that share the state.
    """
    first_of = ties_in(state)
    aliases: dict[str, tuple[str, ...]] = {}
    has_first: dict[DeviceMesh, bool] = {}
    for name, first in first_of.items():
        aliases[first] = (*aliases.get(first, ()), name)
    for name, value in state.items():
        if name in first_of:
            continue
        if not isinstance(value, Tensor):
            yield Piece(name, value, is_writer=is_writer)
        elif isinstance(value, DTensor):
            mesh = value.device_mesh
            if mesh not in has_first:  # torch 2.13 computes `mesh.mesh` in each access
                has_first[mesh] = bool((mesh.mesh == first_rank).any())
            yield from _pieces_of_part(name, value, aliases.get(name, ()), has_first[mesh])
        else:
            shape = tuple(value.shape)
            yield Piece(name, value, shape, (0,) * len(shape), is_writer, aliases.get(name, ()))


def ties_in(state: Mapping[str, Any]) -> dict[str, str]:
    """Return the second names of tensors, with the first name of each.

    Equal parts do not make equal tensors: a `DTensor` is the same only as one of the same shape, mesh and placements.
    """
    alike: dict[Hashable, dict[str, Any]] = {}
    for name, value in state.items():
        layout: Hashable = None
        if isinstance(value, DTensor):
            layout, value = (value.shape, value.device_mesh, value.placements), value.to_local()
        if isinstance(value, DeferredTensor) or (isinstance(value, Tensor) and is_plain(value)):
            alike.setdefault(layout, {})[name] = value
    return {name: first for tensors in alike.values() for name, first in second_names_in(tensors).items()}


def runs_of(tensor: DTensor) -> list[list[tuple[int, int]]]:
    """Return the local part of a `DTensor`: for each dimension, start and size of each run of indices.

    The runs of a dimension are consecutive in the part. There is more than one if the tensor consists of consecutive
    blocks that are each sharded over the same ranks (a fused projection). An axis may also shard the result of later
    axes, as FSDP does with tensor parallelism.
    """
    mesh, placements = tensor.device_mesh, tensor.placements
    coordinate = mesh.get_coordinate() or [0] * mesh.ndim
    runs = [[(0, size)] for size in tensor.shape]
    num_later: dict[int, int] = {}  # by dimension, the ranks that later axes shard it over
    blocked: set[int] = set()
    shardings: list[tuple[int, int, int]] = []
    for axis in reversed(range(mesh.ndim)):
        placement = placements[axis]
        if placement.is_replicate():
            continue
        dim = placement.dim  # type: ignore[attr-defined]
        stride, after = getattr(placement, "split_factor", 1), num_later.get(dim, 1)
        # FSDP shards the local tensor, and records that by a `split_factor` of the number of ranks that later axes
        # shard this dimension over. Any other factor is the number of blocks.
        is_later = stride == after != 1 or (stride == 1 and dim in blocked)
        if stride != 1 and not is_later:
            blocked.add(dim)
        shardings.insert(len(shardings) if is_later else 0, (axis, dim, 1 if is_later else stride))
        num_later[dim] = after * mesh.size(axis)
    for axis, dim, num_blocks in shardings:
        runs[dim] = _shard(runs[dim], num_blocks, mesh.size(axis), coordinate[axis])
    return runs


def _shard(runs: list[tuple[int, int]], num_blocks: int, num_parts: int, index: int) -> list[tuple[int, int]]:
    """Return the runs of part ``index`` if `runs` are divided into blocks and each block into parts."""
    total = sum(size for _, size in runs)
    block = total // num_blocks
    size = -(-block // num_parts)  # full parts first, as torch divides
    first, end = min(index * size, block), min((index + 1) * size, block)
    kept: list[tuple[int, int]] = []
    for number in range(num_blocks):
        kept += _within(runs, number * block + first, number * block + end)
    return kept or [(runs[-1][0] + runs[-1][1], 0)]


def _within(runs: list[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Return the indices number `start` to `end` of `runs`, counted through all of them."""
    kept, passed = [], 0
    for origin, size in runs:
        first, last = max(start - passed, 0), min(end - passed, size)
        if first < last:
            kept.append((origin + first, last - first))
        passed += size
    return kept


def _pieces_of_part(
    name: str, tensor: DTensor, second_names: tuple[str, ...], has_first: bool
) -> Iterator[Piece]:
    """Yield this rank's pieces of a `DTensor`.

    If several ranks have the same part, the writer is the rank at coordinate 0 of the replicated mesh axes; if they
    have different meshes, the one whose mesh has the first rank.

    Raises:
        CheckpointError: If the tensor has not been reduced over the ranks.
    """
    coordinate = tensor.device_mesh.get_coordinate()
    is_writer = coordinate is not None and has_first
    for axis, placement in enumerate(tensor.placements):
        if placement.is_partial():
            raise CheckpointError(
                f"`{name}` has the placement {placement}, which cannot be saved. Redistribute it to `Shard` or "
                "`Replicate` before saving."
            )
        if placement.is_replicate() and coordinate is not None:
            is_writer = is_writer and coordinate[axis] == 0
    shape = tuple(tensor.shape)
    for offset, part in local_pieces(tensor):
        yield Piece(name, part, shape, offset, is_writer, second_names)


def local_pieces(tensor: Tensor) -> list[tuple[tuple[int, ...], Tensor]]:
    """Return views of the local part of a tensor, on its device, each with its offset in the full tensor."""
    if not isinstance(tensor, DTensor):
        return [((0,) * tensor.dim(), tensor.detach())]
    local = local_part(tensor)
    pieces = []
    for runs in product(*(_numbered(each) for each in runs_of(tensor))):
        part = local
        for dim, (_, within, size) in enumerate(runs):
            if size != part.shape[dim]:
                part = part.narrow(dim, within, size)
        pieces.append((tuple(start for start, _, _ in runs), part))
    return pieces


def _numbered(runs: list[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield for each run its start in the tensor, its start in the part, and its size."""
    within = 0
    for start, size in runs:
        yield start, within, size
        within += size


def local_part(tensor: Tensor) -> Tensor:
    """Return the local part of a tensor of any shape, in the same memory, on its device."""
    with torch.no_grad():  # `to_local` is a function of autograd otherwise
        return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def shard_like(parameter: Tensor, whole: Tensor) -> Tensor:
    """Shard a full tensor over the ranks like ``parameter``, which has its shape; it stays on its device.

    No communication.
    """
    if not isinstance(parameter, DTensor):
        return whole
    local = whole
    for dim, runs in enumerate(runs_of(parameter)):
        kept = [local.narrow(dim, begin, size) for begin, size in runs]
        local = kept[0] if len(kept) == 1 else torch.cat(kept, dim)
    return wrap_like(parameter, local.clone(memory_format=torch.contiguous_format))


def empty_like_shard(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor without values, of the shape and on the device of ``parameter``, and sharded like it."""
    return wrap_like(parameter, torch.empty_like(local_part(parameter), dtype=dtype))


@overload
def wrap_like(parameter: DTensor, local: Tensor) -> DTensor: ...
@overload
def wrap_like(parameter: Tensor, local: Tensor) -> Tensor: ...
def wrap_like(parameter: Tensor, local: Tensor) -> Tensor:
    """Return the tensor of the shape of ``parameter``, sharded over the ranks like it, whose local part is ``local``.

    It is on the device of ``local``.
    """
    if not isinstance(parameter, DTensor):
        return local
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
