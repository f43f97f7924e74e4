"""Pad ragged tensors to the size of the largest rank, so that they can be gathered."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from accel_ops.debug import verify_call
from accel_ops.faults import SAME_DIMENSIONS, raise_for_disagreement
from accel_ops.frames import exchange_bytes
from accel_ops.parcel import digest_of, flatten, rebuild
from accel_ops.transport import Transport, current_transport


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
    pairs = zip(leaves, largest, strict=True)
    return rebuild(tensor, (_pad(leaf, dim, size, pad_index, pad_first) for leaf, size in pairs))


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


def _pad(leaf: torch.Tensor, dim: int, size: int, pad_index: int | float, pad_first: bool) -> torch.Tensor:
    """Return the tensor with ``size`` entries along ``dim``, itself if it has them."""
    if not _has_dimension(leaf, dim) or leaf.shape[dim] == size:
        return leaf
    missing = size - leaf.shape[dim]
    # `constant_pad_nd` counts from the last dimension, (before, after) for each.
    later = [0] * (2 * (leaf.ndim - 1 - dim % leaf.ndim))
    return torch.constant_pad_nd(leaf, [*later, *((missing, 0) if pad_first else (0, missing))], pad_index)
