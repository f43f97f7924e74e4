"""Moore Threads GPUs, driven by `torch_musa` (https://github.com/MooreThreads/torch_musa)."""

from __future__ import annotations

from typing import ClassVar

from accel_state.devices.torch_module import TorchModuleBackend
from accel_state.enums import DistributedType


class MusaBackend(TorchModuleBackend):
    """One GPU per process; the processes talk over MCCL."""

    name: ClassVar[str] = "musa"
    plugin: ClassVar[str | None] = "torch_musa"
    collective_backend: ClassVar[str | None] = "mccl"
    distributed_type: ClassVar[DistributedType] = DistributedType.MULTI_MUSA
