"""Pad ragged tensors to the size of the largest rank, so that they can be gathered."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from accel_ops.debug import verify_call
from accel_ops.faults import SAME_DIMENSIONS, raise_for_disagreement
from accel_ops.frames import exchange_bytes
from accel_ops.parcel import digest_of, flatten, rebuild
from accel_ops.transport import Transport, current_transport


_LARGEST_SHARED_BYTES = 1 << 15


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
    sizes = [leaf.shape[dim] if _has_dimension(leaf, dim) else 0 for leaf in leaves]
    signature = (dim, outline, tuple([(leaf.dtype, leaf.dim()) for leaf in leaves]))
    largest = _largest_sizes(transport, sizes, signature, tensor)
    if largest == sizes:
        return rebuild(tensor, iter(leaves))
    fill = _Fill(dim, pad_index, is_first=pad_first)
    return rebuild(tensor, iter(fill.all_of(leaves, sizes, largest)))


def _has_dimension(leaf: torch.Tensor, dim: int) -> bool:
    return not leaf.is_nested and -leaf.ndim <= dim < leaf.ndim


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
    return [
        max(of_ranks)
        for of_ranks in zip(*[struct.unpack(f"<{len(sizes)}q", own) for own in payloads], strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Fill:
    """How tensors are made longer along a dimension."""

    dim: int
    value: int | float
    is_first: bool

    def all_of(
        self, leaves: Sequence[torch.Tensor], sizes: Sequence[int], wanted: Sequence[int]
    ) -> list[torch.Tensor]:
        """Return the tensors with ``wanted`` entries each, themselves if they have them.

        Small ones that are alike are filled together; the results are disjoint views of one memory.
        """
        results = list(leaves)
        alike: dict[Hashable, list[int]] = {}
        for position, (leaf, size, target) in enumerate(zip(leaves, sizes, wanted, strict=True)):
            if size == target:
                continue
            # What autograd follows must not become a view, which could not be changed in place.
            is_alone = (
                leaf.requires_grad or type(leaf) is not torch.Tensor or leaf.nbytes > _LARGEST_SHARED_BYTES
            )
            kind = position if is_alone else (leaf.shape, leaf.dtype, leaf.device, target)
            alike.setdefault(kind, []).append(position)
        for positions in alike.values():
            first, missing = leaves[positions[0]], wanted[positions[0]] - sizes[positions[0]]
            if len(positions) == 1:
                results[positions[0]] = self._filled(first, self.dim % first.ndim, missing)
                continue
            stacked = torch.stack([leaves[position] for position in positions])
            filled = self._filled(stacked, self.dim % first.ndim + 1, missing).unbind(0)
            for position, piece in zip(positions, filled, strict=True):
                results[position] = piece
        return results

    def _filled(self, leaf: torch.Tensor, dim: int, missing: int) -> torch.Tensor:
        # `constant_pad_nd` counts from the last dimension, (before, after) for each.
        later = [0] * (2 * (leaf.ndim - 1 - dim))
        extent = (missing, 0) if self.is_first else (0, missing)
        return torch.constant_pad_nd(leaf, [*later, *extent], self.value)
