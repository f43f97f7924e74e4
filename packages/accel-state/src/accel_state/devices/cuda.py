"""NVIDIA GPUs, and AMD's under ROCm, which torch also calls ``cuda``."""

from __future__ import annotations

import torch
import torch.distributed as dist

from accel_state.devices.torch_module import TorchModuleBackend
from accel_state.environment import patch_environment


class CudaBackend(TorchModuleBackend):
    """One GPU per process; the processes talk over NCCL (RCCL under ROCm)."""

    def why_not(self, *, check_device: bool = False) -> str | None:
        # Asked through the driver's library: CUDA itself, once initialised, does not survive a fork.
        with patch_environment(PYTORCH_NVML_BASED_CUDA_CHECK="1"):
            return super().why_not(check_device=check_device)

    def _why_none(self) -> str:
        if torch.version.cuda is None and torch.version.hip is None:
            return f"This torch ({torch.__version__}) is built without CUDA and ROCm. Install a build that has them."
        return "torch finds no CUDA device. Check the driver with `nvidia-smi` and `CUDA_VISIBLE_DEVICES`."

    def barrier(self, device: torch.device) -> None:
        if dist.get_backend() == "nccl":
            # Without a device NCCL guesses it from the rank, which is wrong on a second machine.
            dist.barrier(device_ids=[device.index])
        else:
            dist.barrier()
