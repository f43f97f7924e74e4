"""NVIDIA GPUs, and AMD's under ROCm, which torch also calls ``cuda``."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from accel_state.devices.backend import DeviceBackend
from accel_state.environment import export, patch_environment, read, variable
from accel_state.nodes import this_host
from accel_state.nvidia import LACKING_P2P, check_cuda_p2p_ib_support
from accel_state.topology import Topology
from accel_state.user_warnings import warn_user

# Without peer-to-peer access NCCL copies through CPU memory.
_NO_PEER_ACCESS = {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"}


class CudaBackend(DeviceBackend):
    """One GPU per process; the processes communicate over NCCL (RCCL under ROCm)."""

    def unavailable_reason(self, *, check_device: bool = False) -> str | None:
        # Through the driver's library, since CUDA, once initialized, does not survive a fork.
        with patch_environment(PYTORCH_NVML_BASED_CUDA_CHECK="1"):
            return super().unavailable_reason(check_device=check_device)

    def _no_device_reason(self) -> str:
        if torch.version.cuda is None and torch.version.hip is None:
            return f"This torch ({torch.__version__}) is built without CUDA and ROCm. Install a build that has them."
        return "torch finds no CUDA device. Check the driver with `nvidia-smi` and `CUDA_VISIBLE_DEVICES`."

    def place(self, topology: Topology) -> torch.device:
        if read("share_gpus"):
            return self.device(topology.local_rank % self.count())
        return super().place(topology)

    def claim(self, device: torch.device, topology: Topology) -> str:
        """Return what NCCL compares: host and GPU. Ranks that share GPUs name different hosts."""
        if read("share_gpus") and variable("NCCL_HOSTID") is None:
            export({"NCCL_HOSTID": f"rank{topology.rank}"})
        uuid = getattr(self.module.get_device_properties(device), "uuid", None)
        return f"{variable('NCCL_HOSTID') or this_host()} GPU-{uuid}" if uuid else ""

    def process_group_options(self) -> dict[str, Any]:
        """Return no options; disable peer-to-peer access in NCCL where these GPUs would hang in it."""
        unset = {name: value for name, value in _NO_PEER_ACCESS.items() if variable(name) is None}
        names = (self.module.get_device_name(number) for number in range(self.count()))
        if unset and any(LACKING_P2P in name for name in names) and not check_cuda_p2p_ib_support():
            warn_user(
                f"Several GPUs of the {LACKING_P2P} series hang in peer-to-peer access under this driver, so it is "
                f"disabled: {' '.join(f'{name}={value}' for name, value in unset.items())}. A newer driver needs no "
                "such setting.",
                main_process_only=False,
            )
            export(unset)
        return {}

    def _computes_in(self, dtype: torch.dtype) -> bool:
        if dtype.itemsize == 1:
            return torch.version.hip is not None or self.module.get_device_capability() >= (8, 9)  # fp8: Ada
        return super()._computes_in(dtype)

    def barrier(self, device: torch.device) -> None:
        if "nccl" in dist.get_backend_config():
            # Without a device NCCL guesses it from the rank, which is wrong on a second machine.
            dist.barrier(device_ids=[device.index])
        else:
            dist.barrier()
