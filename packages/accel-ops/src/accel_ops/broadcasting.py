"""Broadcast: every rank receives what one rank has."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from accel_ops.debug import verify_operation
from accel_ops.flight import Arrivals, carry, flat_leaf, fly, send_leaf
from accel_ops.parcel import Layout, flatten
from accel_ops.transport import Transport, current_transport
from accel_state.errors import ConfigError


@verify_operation
def broadcast(tensor: Any, from_process: int = 0) -> Any:
    """Return the nested tensors of rank ``from_process`` on every rank.

    Every rank must call it, with the same structure, dtypes and shapes; it blocks until all have. The source
    gets its own tensors back; the others get new ones, on the device of their input, and keep theirs
    unchanged. No autograd history.

    Raises:
        TypeError: If a leaf is no dense tensor.
        ConfigError: If there is no such rank.
        DistributedOperationException: On every rank, if the ranks differ; on the CPU always, elsewhere in
            debug mode.
    """
    transport = current_transport()
    check_source(from_process, transport.world_size)
    if transport.world_size == 1:
        flatten(tensor, user=broadcast)
        return tensor
    return fly(transport, _Broadcast(from_process), tensor)


def check_source(from_process: int, world_size: int) -> None:
    """Raise ConfigError unless ``from_process`` is a rank."""
    if not 0 <= from_process < world_size:
        raise ConfigError(f"`from_process` must lie between 0 and {world_size - 1}, got {from_process}.")


class _Broadcast:
    def __init__(self, source: int) -> None:
        self._source = source
        self.arguments: tuple[Hashable, ...] = (source,)

    @property
    def user(self) -> Callable[..., Any]:
        return broadcast

    def shape(self, leaf: torch.Tensor) -> Sequence[int]:
        return leaf.shape

    def has_payload(self, transport: Transport) -> bool:
        return transport.rank == self._source

    def has_result(self, transport: Transport) -> bool:
        return transport.rank != self._source

    def from_rows(self, rows: torch.Tensor) -> torch.Tensor:
        return rows[self._source].clone()

    def send_packed(self, transport: Transport, layout: Layout, leaves: Sequence[torch.Tensor]) -> Arrivals:
        return carry(transport, layout, leaves, lambda flat: transport.broadcast(flat, source=self._source))

    def send_alone(self, transport: Transport, leaf: torch.Tensor) -> torch.Tensor:
        flat = flat_leaf(leaf)
        # The input of the other ranks stays as it is: they receive into new memory.
        flat = flat if self.has_payload(transport) else torch.empty_like(flat)
        return send_leaf(transport, flat, lambda sent: transport.broadcast(sent, source=self._source))
