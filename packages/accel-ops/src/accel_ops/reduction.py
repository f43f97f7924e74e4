"""Reduce: every rank receives the sum or the mean over all."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from accel_ops.debug import verify_operation
from accel_ops.flight import Arrivals, flat_leaf, fly
from accel_ops.parcel import Layout, flatten, pack_segment, rebuild
from accel_ops.transport import Transport, current_transport
from accel_state.errors import ConfigError

_REDUCTIONS = ("mean", "sum", "none")

#: What sums are formed in where the dtype itself overflows early, loses digits, or has no sum in some
#: backend.
_ACCUMULATORS: dict[torch.dtype, torch.dtype] = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e4m3fnuz: torch.float32,
    torch.float8_e5m2: torch.float32,
    torch.float8_e5m2fnuz: torch.float32,
    torch.complex32: torch.complex64,
    torch.bool: torch.int64,
    torch.uint8: torch.int64,
    torch.int8: torch.int64,
    torch.int16: torch.int64,
    torch.int32: torch.int64,
    torch.uint16: torch.int64,
    torch.uint32: torch.int64,
    torch.uint64: torch.int64,
}

_ACCURATE = frozenset({torch.float32, torch.float64})


@verify_operation
def reduce(tensor: Any, reduction: str = "mean", scale: float = 1.0) -> Any:
    """Return nested tensors that hold, element by element, the sum or the mean over all ranks.

    Every rank must call it, with the same structure, dtypes and shapes; it blocks until all have. The input
    is unchanged, the results are on its device and carry no autograd history (with one process, a tensor
    that needs no change is returned itself).

    Args:
        tensor: Nested tensors.
        reduction: ``"mean"``, ``"sum"``, or ``"none"``, which returns ``tensor`` and talks to nobody.
        scale: Multiplies the result.

    Dtypes are kept, with these exceptions, as in torch's own arithmetic: the sum of booleans is an int64
    count, and the mean (or a scaled sum) of booleans and integers is in the default float dtype.
    Half-precision values are added in float32 and integers in int64, so that a mean does not overflow on its
    way.

    Raises:
        ConfigError: If ``reduction`` is unknown.
        TypeError: If a leaf is no dense tensor.
        DistributedOperationException: On every rank, if the ranks differ; on the CPU always, elsewhere in
            debug mode.
    """
    if reduction not in _REDUCTIONS:
        raise ConfigError(f"`reduction` must be one of {', '.join(_REDUCTIONS)}, got `{reduction}`.")
    if reduction == "none":
        return tensor
    transport = current_transport()
    collective = _Reduce(reduction, scale, transport.world_size)
    if transport.world_size == 1:
        leaves, _ = flatten(tensor, user=reduce)
        return rebuild(tensor, (collective.finish(leaf, leaf.dtype) for leaf in leaves))
    return fly(transport, collective, tensor)


class _Reduce:
    def __init__(self, reduction: str, scale: float, world_size: int) -> None:
        self._divisor = world_size if reduction == "mean" else 1
        self._is_mean = reduction == "mean"
        self._scale = scale
        self.arguments: tuple[Hashable, ...] = (reduction, scale)

    @property
    def user(self) -> Callable[..., Any]:
        return reduce

    def shape(self, leaf: torch.Tensor) -> Sequence[int]:
        return leaf.shape

    def has_payload(self, transport: Transport) -> bool:
        return True

    def has_result(self, transport: Transport) -> bool:
        return True

    def from_rows(self, rows: torch.Tensor) -> torch.Tensor:
        if self._is_mean and self._scale == 1.0 and rows.dtype in _ACCURATE:
            return rows.mean(0)
        return self.finish(_accumulable(rows).sum(0), rows.dtype)

    def send_packed(self, transport: Transport, layout: Layout, leaves: Sequence[torch.Tensor]) -> Arrivals:
        return [
            (segment, self._send(transport, pack_segment(segment, leaves), segment.dtype))
            for segment in layout.segments
        ]

    def send_alone(self, transport: Transport, leaf: torch.Tensor) -> torch.Tensor:
        flat = flat_leaf(leaf)
        # The collective overwrites what it is given, which must not be the input.
        shares_memory = flat.untyped_storage().data_ptr() == leaf.untyped_storage().data_ptr()
        return self._send(transport, flat.clone() if shares_memory else flat, leaf.dtype)

    def _send(self, transport: Transport, flat: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        total = _accumulable(flat)
        if total.is_complex():
            return self.finish(torch.view_as_complex(_add(transport, torch.view_as_real(total))), dtype)
        return self.finish(_add(transport, total), dtype)

    def finish(self, total: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the result of values of ``dtype`` that were added up in ``total``, in its proper dtype."""
        if dtype.is_floating_point or dtype.is_complex:
            if self._divisor != 1:  # there are several ranks, so that the sum lies in memory of its own
                total = total.div_(self._divisor)
            return (total * self._scale if self._scale != 1.0 else total).to(dtype)
        if self._is_mean or self._scale != 1.0:
            return (total.to(torch.float64) * self._scale / self._divisor).to(torch.get_default_dtype())
        return total.to(torch.int64 if dtype == torch.bool else dtype)


def _accumulable(values: torch.Tensor) -> torch.Tensor:
    """Return the values in the dtype in which they are added."""
    return values.to(_ACCUMULATORS.get(values.dtype, values.dtype))


def _add(transport: Transport, values: torch.Tensor) -> torch.Tensor:
    return transport.all_reduce(values.reshape(-1)).reshape(values.shape)
