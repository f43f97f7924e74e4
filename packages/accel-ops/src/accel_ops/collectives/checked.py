"""Collectives of ranks that compare their calls first; small data travels with the comparison."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from accel_ops.agreement.calls import Call
from accel_ops.agreement.exchange import agree, room_for_attached
from accel_ops.transport import Reduction, Transport


class CheckedCollectives:
    """The collectives of a transport for one call, which must be the same on all ranks.

    Tensors that are small together are attached to the call, so that one exchange does for both; larger ones
    are sent once the ranks have agreed.

    Each method raises DistributedOperationException on every rank if the calls differ.
    """

    def __init__(self, transport: Transport, call: Call) -> None:
        self._transport = transport
        self._call = call

    def all_gather(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return for each tensor those of all ranks as rows, ``(world_size, n)``, in new memory."""
        gathered = self._gather_attached(tensors)
        return self._transport.all_gather(tensors) if gathered is None else gathered

    def all_reduce(self, tensors: Sequence[torch.Tensor], reduction: Reduction) -> list[torch.Tensor]:
        """Return the sum, maximum or minimum over the ranks; the tensors given may be overwritten.

        A NaN of any rank stays NaN.
        """
        gathered = self._gather_attached(tensors)
        if gathered is not None:
            return [_reduced(rows, reduction) for rows in gathered]
        if reduction == "sum":
            return self._transport.all_reduce(tensors, reduction)
        # Gloo's maximum keeps a NaN or loses it, by the order of the ranks.
        nans = [tensor.isnan().to(torch.uint8) for tensor in tensors if tensor.is_floating_point()]
        reduced = self._transport.all_reduce(tensors, reduction)
        floats = [tensor for tensor in reduced if tensor.is_floating_point()]
        for tensor, nan in zip(floats, self._transport.all_reduce(nans, "max"), strict=True):
            tensor.masked_fill_(nan.bool(), torch.nan)
        return reduced

    def broadcast(self, tensors: Sequence[torch.Tensor], *, source: int) -> list[torch.Tensor]:
        """Return the tensors of rank ``source``; elsewhere the tensors given may be overwritten."""
        gathered = self._gather_attached(tensors)
        if gathered is None:
            return self._transport.broadcast(tensors, source=source)
        return [rows[source].clone() for rows in gathered]

    def _gather_attached(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """Compare the calls; return the tensors of all ranks if they could be attached."""
        sizes = [tensor.nbytes for tensor in tensors]
        if sum(sizes) > room_for_attached(self._transport):
            agree(self._transport, self._call)
            return None
        attached = torch.cat([tensor.view(torch.uint8) for tensor in tensors]) if tensors else None
        replies = agree(self._transport, self._call, attached=attached)
        gathered = [tensor.new_empty((self._transport.world_size, len(tensor))) for tensor in tensors]
        start = 0
        for rows, size in zip(gathered, sizes, strict=True):
            rows.view(torch.uint8).copy_(replies.attached.narrow(1, start, size))
            start += size
        return gathered


def _reduced(rows: torch.Tensor, reduction: Reduction) -> torch.Tensor:
    """Return the sum, maximum or minimum of the rows, formed in the same order on every rank."""
    if reduction == "max":
        return rows.amax(0)
    if reduction == "min":
        return rows.amin(0)
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total
