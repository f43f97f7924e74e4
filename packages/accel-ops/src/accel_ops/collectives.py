"""Collectives on nested tensors: check, pack into one flat tensor per dtype, send, unpack."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Literal, TypeAlias, TypeVar

import torch

from accel_ops.agreement import SAME_DIMENSIONS, SAME_SHAPES, Call, agree, exchange, must_check
from accel_ops.nested.structures import flatten, rebuild
from accel_ops.packing import Packed
from accel_ops.transport import Reduction, Transport, current_transport
from accel_state.devices import device_backend_of
from accel_state.errors import ConfigError
from accel_state.user_warnings import warn_user

T = TypeVar("T")
ReductionName: TypeAlias = Literal["sum", "mean", "max", "min", "none"]
#: The reduction that the transport performs for each ``reduction``.
_REDUCTIONS: dict[str, Reduction] = {"mean": "sum", "sum": "sum", "max": "max", "min": "min"}
#: Sent as a wider dtype, since not every backend computes with these.
_WIDENED = {torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64}
_LARGEST_UINT8 = 255


class CannotPadNestedTensorWarning(UserWarning):
    """A nested tensor cannot be padded without more information and is returned unchanged."""


def gather(tensor: T) -> T:
    """Return nested tensors that hold the rows of all ranks, joined along dimension 0 in rank order.

    Every rank must call it, with the same structure, dtypes and shapes (see :func:`pad_across_processes`);
    it blocks until all have. A 0-dim tensor counts as one row: the result has one dimension, of length
    ``world_size``. Results are on the device of the input, in new memory, without autograd history.
    With one process the input tensors are returned.

    Raises:
        TypeError: If a leaf is not a dense tensor.
        StateError: If there are several processes but no process group.
        DistributedOperationException: On every rank, if the ranks differ; on the CPU always, elsewhere in
            debug mode.
    """
    transport = current_transport()
    leaves, structure = flatten(tensor, user=gather)
    if transport.world_size == 1:
        return rebuild(tensor, [leaf if leaf.ndim else leaf.unsqueeze(0) for leaf in leaves])
    shapes = [
        (transport.world_size * leaf.shape[0], *leaf.shape[1:]) if leaf.ndim else (transport.world_size,)
        for leaf in leaves
    ]
    with transport.lock:
        sent = _sendable(leaves, transport)
        _check(transport, Call(gather, (), _signature(structure, sent), tensor, SAME_SHAPES), sent)
        packed = Packed(sent)
        gathered = packed.unpack(transport.all_gather(packed.flats), shapes)
    return rebuild(tensor, _returned(gathered, leaves))


def reduce(tensor: T, reduction: ReductionName = "mean", scale: float = 1.0) -> T:
    """Return nested tensors that hold, element by element, the sum, mean, maximum or minimum over all ranks.

    Every rank must call it, with the same structure, dtypes and shapes; it blocks until all have. The input
    is unchanged, the results are on its device and carry no autograd history (with one process, a tensor
    that needs no change is returned as is).

    Args:
        tensor: Nested tensors.
        reduction: ``"mean"``, ``"sum"``, ``"max"``, ``"min"``, or ``"none"``, which returns ``tensor`` and
            does not involve the other ranks.
        scale: Multiplies the result.

    Dtypes are kept, with these exceptions: the sum of booleans is an int64 count; the mean (or a scaled
    result) of 32- and 64-bit integers is float64 (float32 on a device that has no float64); for smaller
    integers and booleans it is in the default float dtype.

    What is exact: maxima and minima; sums of integers, modulo the range of their dtype as in torch; the
    totals behind means of integers, which are formed in int32 or int64 (float64 for uint64). Half-precision
    tensors of any size are added in float32 and rounded once.

    Raises:
        ConfigError: If ``reduction`` is unknown.
        TypeError: If a leaf is not a dense tensor, or has no maximum or minimum (complex, uint64).
        StateError: If there are several processes but no process group.
        DistributedOperationException: On every rank, if the ranks differ; on the CPU always, elsewhere in
            debug mode.
    """
    if reduction == "none":
        return tensor
    if reduction not in _REDUCTIONS:
        known = ", ".join([*_REDUCTIONS, "none"])
        raise ConfigError(f"`reduction` must be one of {known}, got `{reduction}`.")
    transport = current_transport()
    leaves, structure = flatten(tensor, user=reduce)
    for dtype in {leaf.dtype for leaf in leaves} if _REDUCTIONS[reduction] != "sum" else ():
        if dtype.is_complex or dtype == torch.uint64:
            raise TypeError(f"`reduce` has no {reduction} of {dtype}. Reduce another dtype.")
    dtypes = [_result_dtype(leaf, reduction, scale) for leaf in leaves]
    if transport.world_size == 1:
        results = [_finished(leaf, reduction, scale, 1) for leaf in leaves]
        return rebuild(tensor, _converted(results, dtypes))
    with transport.lock:
        sent = _sendable(leaves, transport)
        call = Call(reduce, (reduction, scale), _signature(structure, sent), tensor, SAME_SHAPES)
        _check(transport, call, sent)
        sum_dtypes = [_sum_dtype(leaf.dtype, reduction, transport.world_size) for leaf in sent]
        packed = Packed(_converted(sent, sum_dtypes))
        # The transport reduces in place, which must not change the input.
        inputs = {leaf.data_ptr() for leaf in leaves}
        flats = [flat.clone() if flat.data_ptr() in inputs else flat for flat in packed.flats]
        totals = transport.all_reduce(flats, _REDUCTIONS[reduction])
        totals = [_finished(total, reduction, scale, transport.world_size) for total in totals]
        reduced = packed.unpack(totals, [leaf.shape for leaf in leaves])
    return rebuild(tensor, _converted(_returned(reduced, leaves), dtypes))


def _converted(tensors: Sequence[torch.Tensor], dtypes: Sequence[torch.dtype]) -> list[torch.Tensor]:
    pairs = zip(tensors, dtypes, strict=True)
    return [tensor if tensor.dtype == dtype else tensor.to(dtype) for tensor, dtype in pairs]


def _sum_dtype(dtype: torch.dtype, reduction: str, world_size: int) -> torch.dtype:
    """Return the dtype for sending and reducing tensors of ``dtype``."""
    if dtype.is_floating_point:
        is_kept = dtype.itemsize > 2 or (dtype.itemsize == 2 and reduction in ("max", "min"))
        return dtype if is_kept else torch.float32
    if dtype.is_complex:
        return torch.complex64 if dtype == torch.complex32 else dtype
    if dtype == torch.uint64:
        return torch.float64 if reduction == "mean" else torch.int64
    if reduction == "mean":
        return torch.int32 if dtype.itemsize <= 2 else torch.int64
    if dtype == torch.bool:
        return torch.uint8 if reduction != "sum" or world_size <= _LARGEST_UINT8 else torch.int32
    return _WIDENED.get(dtype, dtype)


def _finished(total: torch.Tensor, reduction: str, scale: float, world_size: int) -> torch.Tensor:
    """Return the mean and the scaled values of a total, as floats where either is needed."""
    if reduction != "mean" and scale == 1.0:
        return total
    if not (total.is_floating_point() or total.is_complex()):
        total = total.to(_widest_float(total.device))
    if reduction == "mean" and world_size > 1:
        total = total.div_(world_size)  # in place: a received buffer, never the input
    return total if scale == 1.0 else total * scale


def _result_dtype(leaf: torch.Tensor, reduction: str, scale: float) -> torch.dtype:
    dtype = leaf.dtype
    if dtype.is_floating_point or dtype.is_complex:
        return dtype
    if reduction == "mean" or scale != 1.0:
        return _widest_float(leaf.device) if dtype.itemsize >= 4 else torch.get_default_dtype()
    return torch.int64 if dtype == torch.bool and reduction == "sum" else dtype


def _widest_float(device: torch.device) -> torch.dtype:
    return torch.float64 if device_backend_of(device).supports(torch.float64) else torch.float32


def broadcast(tensor: T, from_process: int = 0) -> T:
    """Return the nested tensors of rank ``from_process`` on every rank.

    Every rank must call it, with the same structure, dtypes and shapes; it blocks until all have. Each rank
    gets the tensors it passed; on all ranks but the source they have been overwritten, outside autograd. Two kinds
    are not: a tensor whose elements overlap in memory, such as an expanded one, is replaced by a new one, and a
    tensor made in inference mode is returned as a copy outside of it.

    Raises:
        TypeError: If a leaf is not a dense tensor.
        ConfigError: If there is no such rank.
        StateError: If there are several processes but no process group.
        DistributedOperationException: On every rank, if the ranks differ; on the CPU always, elsewhere in
            debug mode.
    """
    transport = current_transport()
    check_source(from_process, transport.world_size)
    leaves, structure = flatten(tensor, user=broadcast)
    if transport.world_size == 1:
        return tensor
    with transport.lock:
        sent = _sendable(leaves, transport)
        call = Call(broadcast, (from_process,), _signature(structure, sent), tensor, SAME_SHAPES)
        _check(transport, call, sent)
        packed = Packed(sent)
        # A tensor of inference mode cannot be written outside of it.
        flats = [flat.clone() if flat.is_inference() else flat for flat in packed.flats]
        received = transport.broadcast(flats, source=from_process)
        values = _returned(packed.unpack(received, [leaf.shape for leaf in leaves], copy=False), leaves)
    results = leaves if transport.rank == from_process else _overwritten(leaves, values)
    if not torch.is_inference_mode_enabled():
        results = [leaf.clone() if leaf.is_inference() else leaf for leaf in results]
    return rebuild(tensor, results)


def _overwritten(leaves: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the leaves with the elements of ``values``, which may have been received in their memory."""
    results = list(leaves)
    copied: dict[bool, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for position, (leaf, value) in enumerate(zip(leaves, values, strict=True)):
        strides = leaf.stride()
        if 0 in strides and any(
            size > 1 for size, stride in zip(leaf.shape, strides, strict=True) if not stride
        ):
            results[position] = value.clone()  # an expanded tensor cannot be written in place
        elif value.data_ptr() != leaf.data_ptr() or not leaf.data_ptr():
            copied.setdefault(leaf.is_inference(), []).append((leaf.detach(), value))
        elif not leaf.is_inference():
            torch.autograd.graph.increment_version(leaf)  # a backend writes unseen by autograd
    for is_inference, pairs in copied.items():
        with torch.inference_mode(is_inference):
            for leaf, value in pairs:
                leaf.copy_(value)
    return results


def check_source(from_process: int, world_size: int) -> None:
    """Check that ``from_process`` is a rank.

    Raises:
        ConfigError: If it is not.
    """
    if not 0 <= from_process < world_size:
        raise ConfigError(f"`from_process` must lie between 0 and {world_size - 1}, got {from_process}.")


def pad_across_processes(tensor: T, dim: int = 0, pad_index: int | float = 0, pad_first: bool = False) -> T:
    """Return nested tensors padded along ``dim`` to the size of the largest rank.

    Every rank must call it, with the same structure and numbers of dimensions; it blocks until all have. The
    sizes of all tensors are exchanged at once. Differentiable. Results are in new memory, on the device of the
    input. A tensor without dimension ``dim``, and with one process every tensor, is returned as is.

    Args:
        tensor: Nested tensors.
        dim: The dimension that may differ between the ranks; negative counts from the end.
        pad_index: The fill value.
        pad_first: Fill at the start instead of the end.

    Raises:
        TypeError: If a leaf is not a tensor.
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
        _check_fill_value(dtype, pad_index)
    if transport.world_size == 1:
        return tensor
    signature = f"{structure} {[(leaf.dtype, leaf.ndim) for leaf in leaves]}"
    call = Call(pad_across_processes, (dim,), signature, tensor, SAME_DIMENSIONS)
    sizes = array("q", [leaf.shape[dim] if _has_dim(leaf, dim) else 0 for leaf in leaves])
    with transport.lock:
        of_ranks = [array("q", payload) for payload in exchange(transport, call, sizes.tobytes())]
    padded = [
        _padded(leaf, dim % leaf.ndim, largest - size, pad_index, pad_first) if _has_dim(leaf, dim) else leaf
        for leaf, size, largest in zip(leaves, sizes, map(max, *of_ranks), strict=True)
    ]
    return rebuild(tensor, padded)


def _has_dim(leaf: torch.Tensor, dim: int) -> bool:
    return not leaf.is_nested and -leaf.ndim <= dim < leaf.ndim


def _check_fill_value(dtype: torch.dtype, value: int | float) -> None:
    """Raise ConfigError if ``dtype`` would change the value: a fraction in an integer, -100 in a boolean."""
    if dtype.is_floating_point or dtype.is_complex:
        return
    lowest, highest = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if not lowest <= value <= highest or value != int(value):
        raise ConfigError(
            f"`pad_index` is {value}, which a tensor of {dtype} cannot hold. "
            "Pad such tensors separately with another value, or convert them first."
        )


def _padded(leaf: torch.Tensor, dim: int, missing: int, value: int | float, is_first: bool) -> torch.Tensor:
    if not missing:  # also for sparse tensors, which torch cannot pad
        return leaf.clone()  # a result never shares the memory of an argument
    # `constant_pad_nd` counts from the last dimension, (before, after) for each.
    later = [0] * (2 * (leaf.ndim - 1 - dim))
    extent = [missing, 0] if is_first else [0, missing]
    return torch.constant_pad_nd(leaf, [*later, *extent], value)


def _sendable(leaves: Sequence[torch.Tensor], transport: Transport) -> list[torch.Tensor]:
    """Return the leaves on devices that the transport supports."""
    devices = {device: transport.device_for(device) for device in {leaf.device for leaf in leaves}}
    if all(device == supported for device, supported in devices.items()):
        return list(leaves)
    return [leaf.detach().to(devices[leaf.device]) for leaf in leaves]


def _returned(results: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the results on the devices of the leaves."""
    return [
        result if result.device == leaf.device else result.to(leaf.device)
        for result, leaf in zip(results, leaves, strict=True)
    ]


def _signature(structure: str, leaves: Sequence[torch.Tensor]) -> str:
    return f"{structure} {[(leaf.dtype, leaf.shape) for leaf in leaves]}"


def _check(transport: Transport, call: Call, sent: Sequence[torch.Tensor]) -> None:
    """Compare the call on all ranks if tensors on these devices are checked."""
    if must_check(transport, {leaf.device for leaf in sent}):
        agree(transport, call)
