"""The CPU: always there, shared by any number of processes."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.distributed as dist

from accel_state.enums import DistributedType
from accel_state.topology import Topology


class CpuRng:
    """torch's default generator."""

    def get_state(self) -> torch.Tensor:
        return torch.get_rng_state()

    def set_state(self, state: torch.Tensor) -> None:
        torch.set_rng_state(state)

    def seed(self, seed: int) -> None:
        # Not `torch.manual_seed`, which would also seed every accelerator.
        torch.default_generator.manual_seed(seed)


class CpuMemory:
    """The memory of this process and of its machine."""

    def __init__(self) -> None:
        self._base_peak_bytes = 0

    def allocated_bytes(self, device: torch.device | None = None) -> int:
        import psutil  # a hundredth of a second that few runs need

        return int(psutil.Process().memory_info().rss)

    def peak_allocated_bytes(self, device: torch.device | None = None) -> int:
        """Return the larger of now and the last reset: the system keeps no peak that could be reset."""
        return max(self.allocated_bytes(), self._base_peak_bytes)

    def reset_peak(self, device: torch.device | None = None) -> None:
        self._base_peak_bytes = self.allocated_bytes()

    def free_and_total_bytes(self, device: torch.device | None = None) -> tuple[int, int]:
        import psutil

        memory = psutil.virtual_memory()
        return int(memory.available), int(memory.total)


class CpuBackend:
    """Processes on the CPU, which talk over gloo."""

    name: ClassVar[str] = "cpu"
    collective_backend: ClassVar[str | None] = "gloo"
    distributed_type: ClassVar[DistributedType] = DistributedType.MULTI_CPU

    def __init__(self) -> None:
        self.rng = CpuRng()
        self.memory = CpuMemory()

    def is_available(self) -> bool:
        return True

    def count(self) -> int:
        return 1

    def device(self, local_rank: int) -> torch.device:
        return torch.device("cpu")

    def place(self, topology: Topology) -> torch.device:
        return torch.device("cpu")

    def set_device(self, device: torch.device) -> None:
        """Nothing to set: there is one CPU device."""

    def refine_topology(self, topology: Topology) -> Topology:
        return topology

    def process_group_options(self) -> dict[str, Any]:
        return {}

    def barrier(self, device: torch.device) -> None:
        dist.barrier()

    def synchronize(self) -> None:
        """Nothing to wait for: the CPU computes in order."""

    def empty_cache(self) -> None:
        """Nothing to hand back: the CPU allocator keeps no cache."""

    def supports(self, dtype: torch.dtype) -> bool:
        return True
