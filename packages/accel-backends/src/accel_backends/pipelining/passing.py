"""Tensors that a stage sends to the next, or back to the previous one."""

from __future__ import annotations

from collections import deque
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
        self._sent: deque[list[tuple[dist.Work | None, torch.Tensor]]] = deque()
        self._num_freed = 0

    def send(self, tensors: Sequence[torch.Tensor]) -> None:
        """Send tensors as one message, without waiting until they have arrived."""
        self.free()
        raw = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
        self._sent.append([(dist.isend(one, self._rank, group=self._group), one) for one in raw])

    def free(self, num_arrived: int = 0) -> None:
        """Free messages that have arrived, be it that the backend knows, or that they are the first ``num_arrived``."""
        while self._sent and (self._num_freed < num_arrived or _has_arrived(self._sent[0])):
            for work, _ in self._sent.popleft():
                if work is not None:
                    work.wait()
            self._num_freed += 1

    def receive(self, like: Sequence[torch.Tensor], *, device: torch.device) -> list[torch.Tensor]:
        """Wait for tensors of the shapes and dtypes of ``like``, and return them."""
        received = [torch.empty(one.shape, dtype=one.dtype, device=device) for one in like]
        for tensor in received:
            dist.recv(tensor.reshape(-1).view(torch.uint8), self._rank, group=self._group)
        return received

    def finish(self) -> None:
        """Wait until everything has been sent."""
        self.free(self._num_freed + len(self._sent))


def _has_arrived(message: Sequence[tuple[dist.Work | None, torch.Tensor]]) -> bool:
    return all(work is None or work.is_completed() for work, _ in message)  # gloo never knows


class Inbox:
    """What a neighbour sends, taken in any order.

    Args:
        order: The keys of what it sends, in its order, each with the number of messages that it has received before.
        answered: Sends it these messages.
        receive: Receives what is sent for a key.
    """

    def __init__(
        self,
        order: Sequence[tuple[Key, int]],
        *,
        answered: Neighbour,
        receive: Callable[[Key], list[torch.Tensor]],
    ) -> None:
        self._coming = iter(order)
        self._answered = answered
        self._receive = receive
        self._kept: dict[Key, list[torch.Tensor]] = {}

    def take(self, key: Key) -> list[torch.Tensor]:
        """Wait for the tensors of a key, and return them."""
        while key not in self._kept:
            coming, num_received = next(self._coming)
            self._kept[coming] = self._receive(coming)
            self._answered.free(num_received)
        return self._kept.pop(key)


def lane(place: int, num_ranks: int) -> int:
    """Return which of two or three groups a rank sends in; neighbors send in others, as NCCL runs a group in order."""
    return 2 if num_ranks % 2 and place == num_ranks - 1 else place % 2
