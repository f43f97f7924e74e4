"""Apple's GPUs, part of torch (https://docs.pytorch.org/docs/stable/mps.html)."""

from __future__ import annotations

import torch

from accel_state.devices.backend import DeviceBackend


class MpsBackend(DeviceBackend):
    """One GPU, one process."""

    def unavailable_reason(self, *, check_device: bool = False) -> str | None:
        if not torch.backends.mps.is_built():
            return f"This torch ({torch.__version__}) is built without MPS."
        if not torch.backends.mps.is_available():
            return "torch finds no MPS device. It needs macOS 12.3 or newer and a GPU that Metal supports."
        return None

    def set_device(self, device: torch.device) -> None:
        """Nothing to set: there is one GPU."""

    def seed_all(self, seed: int) -> None:
        self.module.manual_seed(seed)

    def _no_64_bit_reason(self) -> str | None:
        return "Apple's GPUs have no 64-bit floating point."

    def _computes_in(self, dtype: torch.dtype) -> bool:
        return dtype != torch.bfloat16 or bool(torch.backends.mps.is_macos_or_newer(14, 0))  # Metal's bf16

    def free_and_total_bytes(self, device: torch.device | None = None) -> tuple[int, int]:
        total = int(torch.mps.recommended_max_memory())
        return max(0, total - int(torch.mps.driver_allocated_memory())), total
