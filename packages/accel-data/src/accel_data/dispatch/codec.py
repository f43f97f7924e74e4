"""Pieces of a batch as bytes: the tensors end to end, and a description of everything else."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import torch

from accel_ops.nested.structures import recursively_apply

_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a tensor in a structure, and where its bytes are."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Outline:
    """What a rank needs to rebuild its piece: the structure with a `Slot` for each tensor, and where its bytes are."""

    skeleton: Any
    start: int
    num_bytes: int


def outline_pieces(pieces: list[Any]) -> tuple[bytes, list[tuple[int, torch.Tensor]], int]:
    """Return the pickled outlines of the pieces, the tensors with their offsets, and the total size.

    Tensors are numbered from the start of their own piece, so that equal pieces have equal outlines.
    """
    outlines: list[Outline] = []
    tensors: list[tuple[int, torch.Tensor]] = []
    begin = 0
    for piece in pieces:
        used = 0

        def place(tensor: torch.Tensor, begin: int = begin) -> Slot:
            nonlocal used
            tensor = tensor.detach().contiguous()
            slot = Slot(tensor.dtype, tuple(tensor.shape), used, tensor.numel() * tensor.element_size())
            tensors.append((begin + used, tensor))
            used += _aligned(slot.num_bytes)
            return slot

        outlines.append(Outline(recursively_apply(place, piece, test_type=_is_dense), begin, used))
        begin += used
    return pickle.dumps(outlines, protocol=pickle.HIGHEST_PROTOCOL), tensors, begin


def write_tensors(tensors: list[tuple[int, torch.Tensor]], buffer: torch.Tensor) -> None:
    """Copy the bytes of the tensors to their offsets in ``buffer`` (uint8)."""
    for start, tensor in tensors:
        if tensor.numel():
            flat = tensor.reshape(-1).view(torch.uint8)
            buffer[start : start + flat.numel()].copy_(flat)


def read_piece(outline: Outline, buffer: torch.Tensor) -> Any:
    """Return a copy of the piece that was written to ``buffer``."""
    own = buffer[outline.start : outline.start + outline.num_bytes].clone()

    def fetch(slot: Slot) -> torch.Tensor:
        return own[slot.start : slot.start + slot.num_bytes].view(slot.dtype).view(slot.shape)

    return recursively_apply(fetch, outline.skeleton, test_type=lambda value: isinstance(value, Slot))


def _is_dense(value: object) -> bool:
    """Tell whether the value is a strided tensor; others are pickled with the structure."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_nested


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
