"""Apple's GPUs, part of torch itself (https://docs.pytorch.org/docs/stable/mps.html)."""

from __future__ import annotations

from typing import ClassVar

import torch

from accel_state.devices.torch_module import ModuleRng, TorchModuleBackend
from accel_state.enums import DistributedType


class MpsRng(ModuleRng):
    """The one device's random state."""

    def seed(self, seed: int) -> None:
        self._backend.module.manual_seed(seed)


class MpsMemory:
    """The Metal allocator's counters, which keep no peak."""

    def __init__(self) -> None:
        self._peak_bytes = 0

    def allocated_bytes(self, device: torch.device | None = None) -> int:
        return int(torch.mps.current_allocated_memory())

    def peak_allocated_bytes(self, device: torch.device | None = None) -> int:
        """Return the largest number seen at the last reset and since, as far as it was asked for."""
        self._peak_bytes = max(self._peak_bytes, self.allocated_bytes())
        return self._peak_bytes

    def reset_peak(self, device: torch.device | None = None) -> None:
        self._peak_bytes = self.allocated_bytes()

    def free_and_total_bytes(self, device: torch.device | None = None) -> tuple[int, int]:
        total = int(torch.mps.recommended_max_memory())
        return max(0, total - int(torch.mps.driver_allocated_memory())), total


class MpsBackend(TorchModuleBackend):
    """One GPU, one process."""

    name: ClassVar[str] = "mps"
    collective_backend: ClassVar[str | None] = None
    distributed_type: ClassVar[DistributedType] = DistributedType.NO

    def __init__(self) -> None:
        self.rng = MpsRng(self)
        self.memory = MpsMemory()

    def is_available(self) -> bool:
        return bool(torch.backends.mps.is_available())

    def set_device(self, device: torch.device) -> None:
        """Nothing to set: there is one GPU."""

    def supports(self, dtype: torch.dtype) -> bool:
        if dtype == torch.bfloat16:
            return bool(torch.backends.mps.is_macos_or_newer(14, 0))
        return dtype not in (torch.float64, torch.complex128)
