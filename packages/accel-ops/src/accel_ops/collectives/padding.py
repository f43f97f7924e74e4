"""Pad ragged tensors to the size of the largest rank, so that they can be gathered."""

from __future__ import annotations

from typing import Any

import torch

from accel_ops.agreement.calls import SAME_DIMENSIONS, Call
from accel_ops.agreement.exchange import room_for_attached
from accel_ops.collectives.checked import CheckedCollectives
from accel_ops.collectives.packing import flatten, rebuild
from accel_ops.transport import current_transport
from accel_state.errors import ConfigError
from accel_state.user_warnings import warn_user


class CannotPadNestedTensorWarning(UserWarning):
    """A nested tensor cannot be padded without more information and is returned as it is."""


def pad_across_processes(
    tensor: Any, dim: int = 0, pad_index: int | float = 0, pad_first: bool = False
) -> Any:
    """Return nested tensors that have, along ``dim``, the size of the largest rank each.

    Every rank must call it, with the same structure and numbers of dimensions; it blocks until all have. The
    sizes of all tensors are exchanged at once, whatever their number. Differentiable; a tensor that has its
    size already, or that has no dimension ``dim``, is returned itself.

    Args:
        tensor: Nested tensors.
        dim: The dimension that may differ between the ranks; negative counts from the end.
        pad_index: What to fill with.
        pad_first: Fill at the beginning instead of the end.

    Raises:
        TypeError: If a leaf is no tensor.
        ConfigError: If the dtype of a tensor cannot hold ``pad_index``.
        StateError: If there are several processes but no process group.
        DistributedOperationException: On every rank, if the ranks differ in operation, structure or
            dimensions.
    """
    transport = current_transport()
    leaves, structure = flatten(tensor, user=pad_across_processes, dense_only=False)
    if any(leaf.is_nested for leaf in leaves):
        warn_user(
            "Cannot pad nested tensors without more information. Leaving unprocessed.",
            CannotPadNestedTensorWarning,
        )
    for dtype in {leaf.dtype for leaf in leaves if _has_dim(leaf, dim)}:
        _check_holds(dtype, pad_index)
    if transport.world_size == 1:
        return tensor
    with transport.lock:
        signature = f"{structure} {[(leaf.dtype, leaf.ndim) for leaf in leaves]}"
        call = Call(pad_across_processes, (dim,), signature, tensor, SAME_DIMENSIONS)
        own = [leaf.shape[dim] if _has_dim(leaf, dim) else 0 for leaf in leaves]
        cpu = torch.device("cpu")
        # What travels with the call is read on the CPU.
        device = cpu if 8 * len(own) <= room_for_attached(transport) else transport.device_for(cpu)
        sent = torch.tensor(own, dtype=torch.int64, device=device)
        (largest,) = CheckedCollectives(transport, call).all_reduce([sent], "max")
    padded = [
        _padded(leaf, dim % leaf.ndim, size - leaf.shape[dim], pad_index, pad_first)
        if _has_dim(leaf, dim) and leaf.shape[dim] < size
        else leaf
        for leaf, size in zip(leaves, largest.tolist(), strict=True)
    ]
    return rebuild(tensor, iter(padded))


def _has_dim(leaf: torch.Tensor, dim: int) -> bool:
    return not leaf.is_nested and -leaf.ndim <= dim < leaf.ndim


def _check_holds(dtype: torch.dtype, value: int | float) -> None:
    """Refuse a fill value that tensors of ``dtype`` would change: a fraction in an integer, -100 in a boolean."""
    if dtype.is_floating_point or dtype.is_complex:
        return
    lowest, highest = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if not lowest <= value <= highest or value != int(value):
        raise ConfigError(
            f"`pad_index` is {value}, which a tensor of {dtype} cannot hold. "
            "Pad such tensors separately with a value of their own, or convert them first."
        )


def _padded(leaf: torch.Tensor, dim: int, missing: int, value: int | float, is_first: bool) -> torch.Tensor:
    # `constant_pad_nd` counts from the last dimension, (before, after) for each.
    later = [0] * (2 * (leaf.ndim - 1 - dim))
    extent = [missing, 0] if is_first else [0, missing]
    return torch.constant_pad_nd(leaf, [*later, *extent], value)
