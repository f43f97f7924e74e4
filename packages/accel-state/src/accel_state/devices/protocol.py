"""What every device vendor's file offers."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, runtime_checkable

import torch

from accel_state.enums import DistributedType
from accel_state.topology import Topology


@runtime_checkable
class DeviceRng(Protocol):
    """The random state of a kind of device, for the device that is current in this process."""

    def get_state(self) -> torch.Tensor: ...

    def set_state(self, state: torch.Tensor) -> None: ...

    def seed(self, seed: int) -> None:
        """Seed every device of this kind that the process sees."""
        ...


@runtime_checkable
class DeviceMemory(Protocol):
    """Memory of one device, in bytes."""

    def allocated_bytes(self, device: torch.device | None = None) -> int: ...

    def peak_allocated_bytes(self, device: torch.device | None = None) -> int: ...

    def reset_peak(self, device: torch.device | None = None) -> None: ...

    def free_and_total_bytes(self, device: torch.device | None = None) -> tuple[int, int]: ...


@runtime_checkable
class DeviceBackend(Protocol):
    """One kind of device: what torch calls it, how many there are, how its processes talk to each other."""

    name: ClassVar[str]
    """The device type in torch's words (``cuda``)."""
    collective_backend: ClassVar[str | None]
    """The process group backend that several processes use; None when they cannot be several."""
    distributed_type: ClassVar[DistributedType]
    """What a run of several processes on this device is called in users' code."""

    def is_available(self) -> bool:
        """Tell whether this process can use at least one device of this kind, without raising."""
        ...

    def count(self) -> int:
        """Return how many devices of this kind the process sees."""
        ...

    def device(self, local_rank: int) -> torch.device:
        """Return the device with that number on this machine."""
        ...

    def place(self, topology: Topology) -> torch.device:
        """Return the device of a process.

        Raises:
            ConfigError: If the machine runs more processes than it has devices of this kind.
        """
        ...

    def set_device(self, device: torch.device) -> None:
        """Make ``device`` the current one of this process."""
        ...

    def refine_topology(self, topology: Topology) -> Topology:
        """Return the topology as the device's own runtime tells it; most have nothing to add."""
        ...

    def process_group_options(self) -> dict[str, Any]:
        """Return what ``init_process_group`` needs on this device beyond backend and rendezvous."""
        ...

    def barrier(self, device: torch.device) -> None:
        """Block until every rank of the default process group has come here."""
        ...

    def synchronize(self) -> None:
        """Block until everything queued on the current device is done."""
        ...

    def empty_cache(self) -> None:
        """Hand cached but unused memory of the device back to the driver."""
        ...

    def supports(self, dtype: torch.dtype) -> bool:
        """Tell whether the device computes in ``dtype``."""
        ...

    @property
    def rng(self) -> DeviceRng: ...

    @property
    def memory(self) -> DeviceMemory: ...
