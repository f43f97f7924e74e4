"""Intel GPUs, part of torch itself (https://docs.pytorch.org/docs/stable/xpu.html)."""

from __future__ import annotations

from typing import ClassVar

from accel_state.devices.torch_module import TorchModuleBackend
from accel_state.enums import DistributedType


class XpuBackend(TorchModuleBackend):
    """One GPU per process; the processes talk over XCCL."""

    name: ClassVar[str] = "xpu"
    collective_backend: ClassVar[str | None] = "xccl"
    distributed_type: ClassVar[DistributedType] = DistributedType.MULTI_XPU
