"""One process: every collective returns what it was given."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NoReturn

import torch

from accel_ops.transport.protocol import Reduction


class SingleProcess:
    """The transport of a run with one process."""

    rank = 0
    world_size = 1

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def device_for(self, device: torch.device) -> torch.device:
        return device

    def is_checked(self, device: torch.device) -> bool:
        return False

    def all_gather(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [tensor.clone().unsqueeze(0) for tensor in tensors]

    def all_reduce(self, tensors: Sequence[torch.Tensor], reduction: Reduction) -> list[torch.Tensor]:
        return list(tensors)

    def broadcast(self, tensors: Sequence[torch.Tensor], *, source: int) -> list[torch.Tensor]:
        return list(tensors)

    @property
    def store(self) -> NoReturn:
        raise AssertionError("a single process shares no store")
