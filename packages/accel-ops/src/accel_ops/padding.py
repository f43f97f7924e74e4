"""Pad ragged tensors to the size of the largest rank, so that they can be gathered."""

from __future__ import annotations

import math
import struct
import warnings
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from accel_ops.debug import verify_call
from accel_ops.faults import SAME_DIMENSIONS, raise_for_disagreement
from accel_ops.frames import exchange_bytes
from accel_ops.parcel import digest_of, flatten, rebuild
from accel_ops.transport import Transport, current_transport

#: Results up to this size may share memory with others.
_SMALL_BYTES = 1 << 15


class CannotPadNestedTensorWarning(UserWarning):
    """A nested tensor cannot be padded without more information and is handed on as it is."""


@verify_call(aspects=SAME_DIMENSIONS)
def pad_across_processes(
    tensor: Any, dim: int = 0, pad_index: int | float = 0, pad_first: bool = False
) -> Any:
    """Return nested tensors that have, along ``dim``, the size of the largest rank each.

    Every rank must call it, with the same structure and numbers of dimensions; it blocks until all have. The
    sizes of all tensors cross the wire in one message, whatever their number. Differentiable; a tensor that
    has its size already, or that has no dimension ``dim``, is handed on itself.

    Args:
        tensor: Nested tensors.
        dim: The dimension that may differ between the ranks; negative counts from the end.
        pad_index: What to fill with.
        pad_first: Fill at the beginning instead of the end.

    Raises:
        TypeError: If a leaf is no tensor.
        DistributedOperationException: On every rank, if the ranks differ in operation, structure or
            dimensions.
    """
    transport = current_transport()
    leaves, outline = flatten(tensor, user=pad_across_processes, dense_only=False)
    for leaf in leaves:
        if leaf.is_nested:
            warnings.warn(
                "Cannot pad nested tensors without more information. Leaving unprocessed.",
                CannotPadNestedTensorWarning,
                stacklevel=3,
            )
    if transport.world_size == 1:
        return tensor
    shapes = tuple([() if leaf.is_nested else tuple(leaf.shape) for leaf in leaves])
    sizes = [shape[dim] if -len(shape) <= dim < len(shape) else 0 for shape in shapes]
    dtypes = tuple([leaf.dtype for leaf in leaves])
    largest = _largest_sizes(transport, sizes, (dim, outline, dtypes, tuple(map(len, shapes))), tensor)
    if largest == sizes:
        return rebuild(tensor, iter(leaves))
    fill = _Fill(dim, pad_index, is_first=pad_first)
    growing = tuple([0 if size == target else target for size, target in zip(sizes, largest, strict=True)])
    return rebuild(tensor, iter(fill.all_of(leaves, _alike(leaves, dtypes, shapes, growing, dim), growing)))


def _largest_sizes(
    transport: Transport, sizes: Sequence[int], signature: tuple[Any, ...], data: Any
) -> list[int]:
    """Return, for each tensor, the largest of the sizes that the ranks have."""
    digest = digest_of(("pad_across_processes", *signature))
    seen, payloads = exchange_bytes(transport, digest=digest, payload=struct.pack(f"<{len(sizes)}q", *sizes))
    if not payloads:
        arguments = (signature[0],)
        raise_for_disagreement(
            transport,
            seen,
            operation=pad_across_processes,
            arguments=arguments,
            data=data,
            aspects=SAME_DIMENSIONS,
        )
    return list(map(max, *[struct.unpack(f"<{len(sizes)}q", own) for own in payloads]))


@dataclass(frozen=True, slots=True)
class _Fill:
    """How tensors are made longer along a dimension."""

    dim: int
    value: int | float
    is_first: bool

    def all_of(
        self, leaves: Sequence[torch.Tensor], groups: Iterable[Sequence[int]], wanted: Sequence[int]
    ) -> list[torch.Tensor]:
        """Return the tensors, those of the groups with ``wanted`` entries each, and the others themselves.

        Those of one group are filled together; the results are disjoint views of one memory.
        """
        results = list(leaves)
        for positions in groups:
            first, target = leaves[positions[0]], wanted[positions[0]]
            dim, missing = self.dim % first.ndim, target - first.shape[self.dim]
            if len(positions) == 1:
                results[positions[0]] = self._filled(first, dim, missing)
                continue
            stacked = torch.stack([leaves[position] for position in positions])
            for position, piece in zip(
                positions, self._filled(stacked, dim + 1, missing).unbind(0), strict=True
            ):
                results[position] = piece
        return results

    def _filled(self, leaf: torch.Tensor, dim: int, missing: int) -> torch.Tensor:
        # `constant_pad_nd` counts from the last dimension, (before, after) for each.
        later = [0] * (2 * (leaf.ndim - 1 - dim))
        extent = (missing, 0) if self.is_first else (0, missing)
        return torch.constant_pad_nd(leaf, [*later, *extent], self.value)


def _alike(
    leaves: Sequence[torch.Tensor],
    dtypes: tuple[torch.dtype, ...],
    shapes: tuple[tuple[int, ...], ...],
    wanted: tuple[int, ...],
    dim: int,
) -> tuple[tuple[int, ...], ...]:
    """Return the positions of the tensors that grow, those together that may be filled together.

    What autograd follows must not become a view, which could not be changed in place.
    """
    is_plain = not any(type(leaf) is not torch.Tensor or leaf.requires_grad for leaf in leaves)
    if is_plain and len({leaf.device for leaf in leaves}) == 1:
        return _groups(dtypes, shapes, wanted, dim)
    return tuple([(position,) for position, target in enumerate(wanted) if target])


@lru_cache(maxsize=512)
def _groups(
    dtypes: tuple[torch.dtype, ...], shapes: tuple[tuple[int, ...], ...], wanted: tuple[int, ...], dim: int
) -> tuple[tuple[int, ...], ...]:
    """Group small tensors by dtype and shape, the others alone: keeping one of these would keep all alive."""
    groups: dict[Hashable, list[int]] = {}
    for position, (dtype, shape, target) in enumerate(zip(dtypes, shapes, wanted, strict=True)):
        if target:
            size = math.prod(shape[:dim]) * target * math.prod(shape[dim:][1:]) * dtype.itemsize
            is_small = size <= _SMALL_BYTES
            groups.setdefault((dtype, shape, target) if is_small else position, []).append(position)
    return tuple([tuple(positions) for positions in groups.values()])
