"""Huawei Ascend NPUs, driven by `torch_npu` (https://github.com/Ascend/pytorch)."""

from __future__ import annotations

from typing import ClassVar

from accel_state.devices.torch_module import TorchModuleBackend
from accel_state.enums import DistributedType


class NpuBackend(TorchModuleBackend):
    """One NPU per process; the processes talk over HCCL."""

    name: ClassVar[str] = "npu"
    plugin: ClassVar[str | None] = "torch_npu"
    collective_backend: ClassVar[str | None] = "hccl"
    distributed_type: ClassVar[DistributedType] = DistributedType.MULTI_NPU
