"""The CPU: always available, shared by any number of processes."""

from __future__ import annotations

import torch

from accel_state.devices.backend import DeviceBackend
from accel_state.environment import read
from accel_state.topology import Topology


class CpuBackend(DeviceBackend):
    """Processes on the CPU, which communicate over gloo."""

    def unavailable_reason(self, *, check_device: bool = False) -> str | None:
        return None

    def count(self) -> int:
        return 1

    def device(self, local_rank: int) -> torch.device:
        return torch.device("cpu")

    def place(self, topology: Topology) -> torch.device:
        return torch.device("cpu")

    def set_device(self, device: torch.device) -> None:
        """Nothing to set: there is one CPU."""

    def empty_cache(self) -> None:
        """Nothing to release: no cache is kept."""

    def get_rng_state(self) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor) -> None:
        torch.set_rng_state(state)

    def seed_all(self, seed: int) -> None:
        # Not `torch.manual_seed`, which would also seed every accelerator.
        torch.default_generator.manual_seed(seed)

    def _no_64_bit_reason(self) -> str | None:
        return None

    def free_and_total_bytes(self, device: torch.device | None = None) -> tuple[int, int]:
        import psutil  # a hundredth of a second that few runs need

        memory = psutil.virtual_memory()
        return int(memory.available), int(memory.total)

    def _computes_in(self, dtype: torch.dtype) -> bool:
        return dtype != torch.float16 or bool(read("fp16_on_cpu"))
