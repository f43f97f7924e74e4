"""What a transport offers: three collectives on flat tensors, and the ranks' common store."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch.distributed.distributed_c10d import Store

Reduction = Literal["sum", "max", "min"]


class Collectives(Protocol):
    """Three collectives on flat tensors.

    All ranks must make the same calls in the same order; each call blocks until all have. Tensors are
    one-dimensional and contiguous, and have the same length and dtype on every rank. The tensors of one call
    are independent of each other and may be sent at once.
    """

    def all_gather(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return for each tensor those of all ranks as rows, ``(world_size, n)``, in new memory."""
        ...

    def all_reduce(self, tensors: Sequence[torch.Tensor], reduction: Reduction) -> list[torch.Tensor]:
        """Return the sum, maximum or minimum over the ranks; the tensors given may be overwritten."""
        ...

    def broadcast(self, tensors: Sequence[torch.Tensor], *, source: int) -> list[torch.Tensor]:
        """Return the tensors of rank ``source``; elsewhere the tensors given may be overwritten."""
        ...


class Transport(Collectives, Protocol):
    """The collectives of one set of ranks, for tensors on devices that ``device_for`` returned."""

    rank: int
    world_size: int
    #: Held for the whole of an operation, so that those of two threads do not interleave.
    lock: threading.RLock

    def device_for(self, device: torch.device) -> torch.device:
        """Return the device on which tensors of ``device`` are sent: itself if it is served."""
        ...

    def is_checked(self, device: torch.device) -> bool:
        """Tell whether the ranks compare their calls before tensors on this device are sent."""
        ...

    @property
    def store(self) -> Store:
        """The key-value store that all ranks share."""
        ...
