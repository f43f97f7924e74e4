"""NVIDIA GPUs, and AMD's under ROCm, which torch also calls ``cuda``."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.distributed as dist

from accel_state.devices.torch_module import TorchModuleBackend
from accel_state.enums import DistributedType


class CudaBackend(TorchModuleBackend):
    """One GPU per process; the processes talk over NCCL (RCCL under ROCm)."""

    name: ClassVar[str] = "cuda"
    collective_backend: ClassVar[str | None] = "nccl"
    distributed_type: ClassVar[DistributedType] = DistributedType.MULTI_GPU

    def barrier(self, device: torch.device) -> None:
        if dist.get_backend() == "nccl":
            # Told nothing, NCCL guesses the device from the rank, which is wrong on a second machine.
            dist.barrier(device_ids=[device.index])
        else:
            dist.barrier()
