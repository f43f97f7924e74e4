"""Cambricon MLUs, driven by `torch_mlu` (https://github.com/Cambricon/torch_mlu)."""

from __future__ import annotations

from typing import ClassVar

from accel_state.devices.torch_module import TorchModuleBackend
from accel_state.enums import DistributedType


class MluBackend(TorchModuleBackend):
    """One MLU per process; the processes talk over CNCL."""

    name: ClassVar[str] = "mlu"
    plugin: ClassVar[str | None] = "torch_mlu"
    collective_backend: ClassVar[str | None] = "cncl"
    distributed_type: ClassVar[DistributedType] = DistributedType.MULTI_MLU
