"""Tecorigin SDAA accelerators, driven by `torch_sdaa`."""

from __future__ import annotations

from typing import ClassVar

from accel_state.devices.torch_module import TorchModuleBackend
from accel_state.enums import DistributedType


class SdaaBackend(TorchModuleBackend):
    """One accelerator per process; the processes talk over TCCL."""

    name: ClassVar[str] = "sdaa"
    plugin: ClassVar[str | None] = "torch_sdaa"
    collective_backend: ClassVar[str | None] = "tccl"
    distributed_type: ClassVar[DistributedType] = DistributedType.MULTI_SDAA
