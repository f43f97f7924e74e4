"""A whole tensor for the rank that writes it, sent by the ranks that hold its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from accel_checkpoint.formats.deferred import DeferredTensor
from accel_checkpoint.pieces import pieces_of
from accel_checkpoint.saving.snapshot import is_plain


@dataclass(slots=True, eq=False, kw_only=True)
class HeldTensor(DeferredTensor):
    """A tensor that only some ranks hold, such as those of one stage of a pipeline.

    Attributes:
        value: The tensor, which may be a `DTensor` over ranks that hold it; None where others do.
        holders: Those ranks, all of which send it together; further ones may have the same.
        device: Where it is received.
    """

    value: torch.Tensor | None
    holders: tuple[int, ...]
    device: torch.device

    @classmethod
    def of(
        cls,
        value: torch.Tensor | None,
        holders: Sequence[int],
        *,
        dtype: torch.dtype,
        shape: torch.Size,
        device: torch.device,
    ) -> HeldTensor:
        """Return the tensor of the ``holders``; fetched as it is, all ranks receive it."""
        held = cls(
            dtype, shape, torch.Tensor, value=value, holders=tuple(holders), device=torch.device(device)
        )
        held.get = lambda: Receivers(is_receiver=True).receive(held)
        return held


class Receivers:
    """The ranks that receive whole tensors. All ranks ask for the same tensors, in the same order.

    Args:
        is_receiver: Whether this rank is one.
        ranks: All of them, where every rank knows.
    """

    def __init__(self, *, is_receiver: bool, ranks: Sequence[int] | None = None) -> None:
        self._is_receiver = is_receiver
        self._ranks = None if ranks is None else list(ranks)

    def receive(self, tensor: DTensor | HeldTensor) -> torch.Tensor:
        """Return the whole tensor on the receivers; elsewhere an empty one, if that saves memory.

        A single receiver gets the parts straight into the memory of the whole. A collective.
        """
        if isinstance(tensor, DTensor):
            tensor = _on_device_of_mesh(tensor)
        ranks = self._known_ranks(tensor.device)
        if isinstance(tensor, HeldTensor):
            return _passed_on(tensor, ranks)
        axis = _axis_of_rows(tensor) if len(ranks) == 1 else None
        senders = [] if axis is None else _ranks_along(tensor.device_mesh, axis, ranks[0])
        if axis is None or not senders:
            return _summed(tensor)
        if dist.get_rank() not in senders:
            return tensor.to_local().new_empty(0)
        return _sent(tensor, senders, receiver=ranks[0], group=tensor.device_mesh.get_group(axis))

    def _known_ranks(self, device: torch.device) -> list[int]:
        """Return the receivers; the first call is a collective of all ranks."""
        if self._ranks is None:
            own = torch.tensor([self._is_receiver], dtype=torch.uint8, device=device)
            flags = [torch.empty_like(own) for _ in range(dist.get_world_size())]
            dist.all_gather(flags, own)
            self._ranks = [rank for rank, flag in enumerate(flags) if flag.item()]
        return self._ranks


def _on_device_of_mesh(tensor: DTensor) -> DTensor:
    """Return the tensor where its mesh communicates: NCCL sends no parts that are offloaded to the CPU."""
    local, mesh = tensor.to_local().detach(), tensor.device_mesh
    if local.device.type != "cpu" or mesh.device_type == "cpu":
        return tensor
    moved = local.to(mesh.device_type)
    return DTensor.from_local(
        moved, mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def _passed_on(held: HeldTensor, receivers: Sequence[int]) -> torch.Tensor:
    """Return the tensor on ``receivers``, to which the first holder sends it; an empty one elsewhere."""
    source, rank = held.holders[0], dist.get_rank()
    whole = torch.empty(0, dtype=held.dtype, device=held.device)
    if rank in held.holders:
        assert held.value is not None
        value = held.value.detach()
        if isinstance(value, DTensor):
            value = Receivers(is_receiver=rank == source, ranks=[source]).receive(value)
        if rank == source:
            whole = value.to(held.device).contiguous()
    if rank != source and rank in receivers:
        whole = torch.empty(held.shape, dtype=held.dtype, device=held.device)
    if not held.shape.numel():
        return whole
    if rank == source:
        others = [other for other in receivers if other != source]
        _exchange([dist.P2POp(dist.isend, _bytes(whole), other) for other in others])
    elif rank in receivers:
        _exchange([dist.P2POp(dist.irecv, _bytes(whole), source)])
    return whole if rank in receivers else whole.new_empty(0)


def _axis_of_rows(tensor: DTensor) -> int | None:
    """Return the axis of the mesh along which a tensor is cut into rows, None if it is cut otherwise, or not at all."""
    cut = [axis for axis, placement in enumerate(tensor.placements) if not isinstance(placement, Replicate)]
    is_in_rows = len(cut) == 1 and tensor.placements[cut[0]] == Shard(0)
    return cut[0] if is_in_rows and is_plain(tensor.to_local().detach()) else None


def _ranks_along(mesh: DeviceMesh, axis: int, receiver: int) -> list[int]:
    """Return the ranks along one axis of a mesh, of those through ``receiver``; none if it is not in the mesh."""
    place = (mesh.mesh == receiver).nonzero()
    if not len(place):
        return []
    index = [slice(None) if number == axis else int(at) for number, at in enumerate(place[0])]
    return [int(rank) for rank in mesh.mesh[tuple(index)]]


def _sent(tensor: DTensor, ranks: list[int], *, receiver: int, group: dist.ProcessGroup) -> torch.Tensor:
    """Return the whole tensor on ``receiver``, where each of ``ranks`` sends its rows; an empty one elsewhere."""
    local = tensor.to_local().detach().contiguous()
    if dist.get_rank() != receiver:
        _exchange([dist.P2POp(dist.isend, _bytes(local), receiver, group)] if local.numel() else [])
        return local.new_empty(0)
    whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=local.device)
    num_rows = -(-len(whole) // len(ranks))  # full parts first, as torch divides
    parts = dict(zip(ranks, torch.split(whole, num_rows), strict=False))
    if receiver in parts:
        parts[receiver].copy_(local)
    _exchange(
        [
            dist.P2POp(dist.irecv, _bytes(part), rank, group)
            for rank, part in parts.items()
            if rank != receiver and part.numel()
        ]
    )
    return whole


def _summed(tensor: DTensor) -> torch.Tensor:
    """Return the whole tensor on every rank, however it is cut: each adds its pieces to zeros."""
    pieces = list(pieces_of({"": tensor.detach()}, is_writer=True))
    if not any(hasattr(placement, "split_factor") for placement in tensor.placements):
        return tensor.full_tensor()
    whole = torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    for piece in pieces:
        ends = zip(piece.offset, piece.local.shape, strict=True)
        whole[tuple(slice(begin, begin + size) for begin, size in ends)] = piece.local
    for axis, placement in enumerate(tensor.placements):
        if not placement.is_replicate():
            # As bytes, of which all ranks but one have zeros, the sum is exact.
            dist.all_reduce(_bytes(whole), group=tensor.device_mesh.get_group(axis))
    return whole


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a tensor as bytes, which every backend can send."""
    return tensor.reshape(-1).view(torch.uint8)


def _exchange(operations: list[dist.P2POp]) -> None:
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
