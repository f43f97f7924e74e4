"""Gather: every rank receives the rows of all."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from accel_ops.debug import verify_operation
from accel_ops.flight import Arrivals, carry, flat_leaf, fly, send_leaf
from accel_ops.parcel import Layout, flatten, rebuild
from accel_ops.transport import Transport, current_transport


@verify_operation
def gather(tensor: Any) -> Any:
    """Return nested tensors that hold the rows of all ranks, joined along dimension 0 in rank order.

    Every rank must call it, with the same structure, dtypes and shapes (see :func:`pad_across_processes`);
    it blocks until all have. A 0-dim tensor counts as one row: the result has one dimension, of length
    ``world_size``. Results are on the device of the input and carry no autograd history. With one process
    the tensors themselves come back.

    Raises:
        TypeError: If a leaf is no dense tensor.
        DistributedOperationException: On every rank, if the ranks differ; on the CPU always, elsewhere in
            debug mode.
    """
    transport = current_transport()
    if transport.world_size == 1:
        leaves, _ = flatten(tensor, user=gather)
        return rebuild(tensor, (leaf if leaf.ndim else leaf.unsqueeze(0) for leaf in leaves))
    return fly(transport, _Gather(transport.world_size), tensor)


class _Gather:
    arguments: tuple[Hashable, ...] = ()

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size

    @property
    def user(self) -> Callable[..., Any]:
        return gather

    def shape(self, leaf: torch.Tensor) -> Sequence[int]:
        return (self._world_size * leaf.shape[0], *leaf.shape[1:]) if leaf.ndim else (self._world_size,)

    def has_payload(self, transport: Transport) -> bool:
        return True

    def has_result(self, transport: Transport) -> bool:
        return True

    def from_rows(self, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def send_packed(self, transport: Transport, layout: Layout, leaves: Sequence[torch.Tensor]) -> Arrivals:
        return carry(transport, layout, leaves, transport.all_gather)

    def send_alone(self, transport: Transport, leaf: torch.Tensor) -> torch.Tensor:
        return send_leaf(transport, flat_leaf(leaf), transport.all_gather)
