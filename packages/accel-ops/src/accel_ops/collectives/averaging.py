"""The mean of weights over all ranks, in few collectives and few copies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

SMALL_BYTES = 1 << 18
"""Tensors below this size are packed; copying a larger one costs more than a collective of its own."""

PACKED_BYTES = 1 << 25
"""At most so many bytes of one dtype are packed, so that packing needs little memory."""

ACCUMULATORS = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""Dtype of the sum, where the dtype itself loses digits or overflows."""


class WeightAverage:
    """Replaces the same tensors on every rank by their mean, at each call of `run`.

    Small tensors of one dtype are packed into one collective. The data of a tensor may be replaced between
    calls, the tensor itself may not.

    Args:
        tensors: Floating-point or complex tensors, of the same shapes in the same order on every rank.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        packed: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        room: dict[tuple[torch.dtype, torch.device], int] = {}
        self._alone: list[Tensor] = []
        for tensor in tensors:
            kind, num_bytes = (tensor.dtype, tensor.device), tensor.nbytes
            left = room.setdefault(kind, PACKED_BYTES)
            if tensor.is_contiguous() and num_bytes < SMALL_BYTES and num_bytes <= left:
                packed.setdefault(kind, []).append(tensor)
                room[kind] = left - num_bytes
            else:
                self._alone.append(tensor)
        self._buckets = [Bucket(members) for members in packed.values()]

    @torch.no_grad()
    def run(self) -> None:
        """Replace all tensors by their means. Every rank must call it; blocks until all have."""
        world_size = dist.get_world_size()
        totals = [bucket.pack() for bucket in self._buckets]
        totals += [accumulable(tensor.detach().contiguous()) for tensor in self._alone]
        works = [dist.all_reduce(wire_format(total), async_op=True) for total in totals]
        for work, total in zip(works, totals, strict=True):
            work.wait()
            total.div_(world_size)
        for bucket, total in zip(self._buckets, totals, strict=False):
            bucket.unpack(total)
        for tensor, total in zip(self._alone, totals[len(self._buckets) :], strict=True):
            if total.data_ptr() != tensor.data_ptr():
                tensor.copy_(total)


class Bucket:
    """Small tensors of one dtype on one device, and the buffer that they are packed into."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors
        self._sizes = [tensor.numel() for tensor in tensors]
        self._buffer = torch.empty(sum(self._sizes), dtype=tensors[0].dtype, device=tensors[0].device)
        self._slots = self._buffer.split(self._sizes)  # type: ignore[no-untyped-call]
        self._places: list[int] = []
        self._views: list[Tensor] = []

    def pack(self) -> Tensor:
        """Return the values of all tensors, end to end."""
        places = [tensor.data_ptr() for tensor in self._tensors]
        # An old view keeps its memory alive, so that no other tensor can come to lie at its address.
        if places != self._places:
            self._views = [tensor.detach().view(-1) for tensor in self._tensors]
            self._places = places
        return accumulable(torch.cat(self._views, out=self._buffer))

    def unpack(self, values: Tensor) -> None:
        """Write the values back."""
        if values is not self._buffer:
            self._buffer.copy_(values)
        torch._foreach_copy_(self._views, self._slots)


def accumulable(values: Tensor) -> Tensor:
    """Return `values` in the dtype of their sum; themselves if it is their own."""
    return values.to(ACCUMULATORS.get(values.dtype, values.dtype))


def wire_format(values: Tensor) -> Tensor:
    """Return a view of `values` that every backend can add up."""
    return torch.view_as_real(values) if values.is_complex() else values
