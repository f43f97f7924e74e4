"""Tensors that a stage sends to the next, or back to the previous one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

Key = tuple[int, int]
"""A stage and a micro-batch."""


class Neighbour:
    """A rank that tensors are sent to or received from, in the same order on both sides.

    Args:
        rank: Its rank in the world.
        group: The process group that carries nothing but these tensors, in one direction; None: that of the world.
    """

    def __init__(self, rank: int, group: dist.ProcessGroup | None = None) -> None:
        self._rank = rank
        self._group = group
        self._sent: list[tuple[dist.Work | None, torch.Tensor]] = []

    def send(self, tensors: Sequence[torch.Tensor]) -> None:
        """Send tensors, without waiting until they have arrived."""
        for tensor in tensors:
            raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            self._sent.append((dist.isend(raw, self._rank, group=self._group), raw))

    def receive(self, like: Sequence[torch.Tensor], *, device: torch.device) -> list[torch.Tensor]:
        """Wait for tensors of the shapes and dtypes of ``like``, and return them."""
        received = [torch.empty(one.shape, dtype=one.dtype, device=device) for one in like]
        for tensor in received:
            dist.recv(tensor.reshape(-1).view(torch.uint8), self._rank, group=self._group)
        return received

    def finish(self) -> None:
        """Wait until everything has been sent."""
        for work, _ in self._sent:
            if work is not None:
                work.wait()
        self._sent.clear()


class Inbox:
    """What a neighbour sends, taken in any order.

    Args:
        sender: The neighbour.
        order: The keys of what it sends, in its order.
        like: Returns, for a key, tensors of the shapes and dtypes that are sent.
        device: Where they are received.
    """

    def __init__(
        self,
        sender: Neighbour,
        order: Sequence[Key],
        *,
        like: Callable[[Key], Sequence[torch.Tensor]],
        device: torch.device,
    ) -> None:
        self._sender = sender
        self._coming = iter(order)
        self._like = like
        self._device = device
        self._kept: dict[Key, list[torch.Tensor]] = {}

    def take(self, key: Key) -> list[torch.Tensor]:
        """Wait for the tensors of a key, and return them."""
        while key not in self._kept:
            coming = next(self._coming)
            self._kept[coming] = self._sender.receive(self._like(coming), device=self._device)
        return self._kept.pop(key)


def zeros_like(like: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Return tensors of the shapes and dtypes of ``like``, which have no values, on ``device``."""
    return [torch.zeros(tensor.shape, dtype=tensor.dtype, device=device) for tensor in like]
