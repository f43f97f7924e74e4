"""One process: nobody else to reach."""

from __future__ import annotations

from typing import NoReturn

import torch

from accel_ops.frames import FrameTable


class LocalTransport:
    """The way to the other ranks when there are none; operations return before they would use it."""

    rank = 0
    world_size = 1
    packs_bytes = True

    def __init__(self) -> None:
        self.frames = FrameTable(rank=0, world_size=1)
        self.control_device = torch.device("cpu")

    def home(self, device: torch.device) -> torch.device:
        return device

    def is_framed(self, device: torch.device) -> bool:
        return False

    def share(self, frames: FrameTable) -> None:
        """Nobody else has a row."""

    def all_gather(self, flat: torch.Tensor) -> torch.Tensor:
        return flat.clone().unsqueeze(0)

    def all_reduce(self, flat: torch.Tensor) -> torch.Tensor:
        return flat

    def broadcast(self, flat: torch.Tensor, *, source: int) -> torch.Tensor:
        return flat

    @property
    def store(self) -> NoReturn:
        raise AssertionError("one process has nobody to share a store with")

    def bulletin(self) -> NoReturn:
        raise AssertionError("one process has nobody to compare with")
