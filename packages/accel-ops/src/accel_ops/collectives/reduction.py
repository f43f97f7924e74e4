"""Reduce: every rank receives the sum, the mean, the maximum or the minimum over all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from accel_ops.collectives.packing import Bucket, Run, flatten, is_large, rebuild
from accel_ops.collectives.running import Collective, run_collective
from accel_ops.transport import Collectives, Reduction, current_transport
from accel_state.devices.selection import device_backend_of
from accel_state.errors import ConfigError

#: What each ``reduction`` asks of the transport.
_REDUCTIONS: dict[str, Reduction] = {"mean": "sum", "sum": "sum", "max": "max", "min": "min"}
#: Sent as a wider dtype, since not every backend computes with these.
_WIDENED = {torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64}
_LARGEST_UINT8 = 255


def reduce(tensor: Any, reduction: str = "mean", scale: float = 1.0) -> Any:
    """Return nested tensors that hold, element by element, the sum, mean, maximum or minimum over all ranks.

    Every rank must call it, with the same structure, dtypes and shapes; it blocks until all have. The input
    is unchanged, the results are on its device and carry no autograd history (with one process, a tensor
    that needs no change is returned itself).

    Args:
        tensor: Nested tensors.
        reduction: ``"mean"``, ``"sum"``, ``"max"``, ``"min"``, or ``"none"``, which returns ``tensor`` and
            does not involve the other ranks.
        scale: Multiplies the result.

    Dtypes are kept, with these exceptions: the sum of booleans is an int64 count; the mean (or a scaled
    result) of 32- and 64-bit integers is float64 (float32 on a device that has no float64), that of smaller
    integers and booleans is in the default float dtype.

    What is exact: maxima and minima; sums of integers, modulo the range of their dtype as in torch; the
    totals behind means of integers, which are formed in int32 or int64 (float64 for uint64). Half-precision
    tensors up to a few hundred KiB are added in float32 and rounded once. Larger ones are added in their own
    dtype, as torch.distributed does, rounded at each addition; for a mean they are divided first, so that
    the sum cannot overflow. Convert them to float32 for more digits.

    Raises:
        ConfigError: If ``reduction`` is unknown.
        TypeError: If a leaf is no dense tensor, or has no maximum or minimum (complex, uint64).
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
    rule = _Rule(_REDUCTIONS[reduction], reduction == "mean", scale, transport.world_size)
    for leaf in leaves:
        rule.check(leaf)
    if transport.world_size == 1:
        return rebuild(tensor, (rule.finish(leaf, leaf.dtype) for leaf in leaves))

    def send(
        collectives: Collectives, buckets: list[Bucket], sent: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        return _send(collectives, rule, buckets, sent)

    def finish(totals: torch.Tensor, run: Run) -> torch.Tensor:
        return rule.finish(totals, run.dtype).view(len(run.positions), *run.shape)

    collective = Collective(reduce, (reduction, scale), send, finish, rule.sent_dtype)
    return rebuild(tensor, iter(run_collective(transport, collective, tensor, leaves, structure)))


@dataclass(frozen=True, slots=True)
class _Rule:
    """What is computed, and in which dtypes."""

    reduction: Reduction
    is_mean: bool
    scale: float
    world_size: int

    def check(self, leaf: torch.Tensor) -> None:
        """Refuse dtypes that have no order."""
        if self.reduction != "sum" and (leaf.is_complex() or leaf.dtype == torch.uint64):
            raise TypeError(f"`reduce` has no {self.reduction} of {leaf.dtype}. Reduce another dtype.")

    def sent_dtype(self, leaf: torch.Tensor) -> torch.dtype:
        """Return the dtype in which a leaf is sent and reduced."""
        dtype = leaf.dtype
        if dtype.is_floating_point:
            is_half = dtype.itemsize == 2
            return dtype if dtype.itemsize > 2 or (is_half and self._keeps_half(leaf)) else torch.float32
        if dtype.is_complex:
            return torch.complex64 if dtype == torch.complex32 else dtype
        if dtype == torch.uint64:
            return torch.float64 if self.is_mean else torch.int64
        if self.is_mean:
            return torch.int32 if dtype.itemsize <= 2 else torch.int64
        if dtype == torch.bool:
            fits = self.reduction != "sum" or self.world_size <= _LARGEST_UINT8
            return torch.uint8 if fits else torch.int32
        return _WIDENED.get(dtype, dtype)

    def _keeps_half(self, leaf: torch.Tensor) -> bool:
        return is_large(leaf) or self.reduction != "sum"

    def divides_first(self, dtype: torch.dtype) -> bool:
        """Tell whether the sum of values sent as ``dtype`` might overflow although the mean does not."""
        return self.is_mean and dtype.is_floating_point and dtype.itemsize == 2

    def finish(self, total: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the result for values of ``dtype`` that were reduced to ``total``."""
        divisor = self.world_size if self.is_mean and not self.divides_first(total.dtype) else 1
        if dtype.is_floating_point or dtype.is_complex:
            if divisor != 1:
                total = total.div_(divisor)  # there are several ranks, so that this memory is ours
            return (total * self.scale if self.scale != 1.0 else total).to(dtype)
        if self.is_mean or self.scale != 1.0:
            wide = torch.float64 if device_backend_of(total.device).supports(torch.float64) else torch.float32
            result = wide if dtype.itemsize >= 4 else torch.get_default_dtype()
            return (total.to(wide) * self.scale / divisor).to(result)
        return total.to(torch.int64 if dtype == torch.bool and self.reduction == "sum" else dtype)


def _send(
    collectives: Collectives, rule: _Rule, buckets: list[Bucket], leaves: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Reduce each bucket and return the totals."""
    packed = []
    for bucket in buckets:
        leaf = leaves[bucket.runs[0].positions[0]]
        values = bucket.pack(leaves, rule.sent_dtype(leaf))
        if values.data_ptr() == leaf.data_ptr():
            values = values.clone()  # the collective overwrites what it is given, which must not be the input
        if rule.divides_first(values.dtype):
            values.div_(rule.world_size)
        packed.append(values)
    flat = [torch.view_as_real(values).view(-1) if values.is_complex() else values for values in packed]
    reduced = collectives.all_reduce(flat, rule.reduction)
    return [
        torch.view_as_complex(total.view(-1, 2)) if values.is_complex() else total
        for total, values in zip(reduced, packed, strict=True)
    ]
