"""What the class that drives a vendor's devices offers."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch

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
class DeviceBackend(Protocol):
    """One kind of device: how many there are, which one is this process's, how processes talk to each other."""

    @property
    def name(self) -> str:
        """What torch calls the device type (``cuda``)."""
        ...

    @property
    def collective_backend(self) -> str | None:
        """The process group backend that several processes use; None when they cannot be several."""
        ...

    @property
    def distributed_type(self) -> str:
        """What a run of several processes on this device is called in users' code."""
        ...

    @property
    def rng(self) -> DeviceRng:
        """The random state of the device."""
        ...

    def why_not(self, *, check_device: bool = False) -> str | None:
        """Say why this process can use no device of this kind, None if it can. No runtime is initialised.

        Args:
            check_device: Also ask how many there are, which may start the vendor's runtime.
        """
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
        """Return the topology with what the device's own runtime knows; most have nothing to add."""
        ...

    def process_group_options(self) -> dict[str, Any]:
        """Return what ``init_process_group`` needs on this device beyond backend and rendezvous."""
        ...

    def barrier(self, device: torch.device) -> None:
        """Block until every rank of the default process group has called this."""
        ...

    def empty_cache(self) -> None:
        """Give cached but unused memory of the device back to the driver."""
        ...

    def why_not_dtype(self, dtype: torch.dtype) -> str | None:
        """Say why the current device does not compute in ``dtype``, None if it does."""
        ...

    def supports(self, dtype: torch.dtype) -> bool:
        """Tell whether the device computes in ``dtype``."""
        ...

    def free_and_total_bytes(self, device: torch.device | None = None) -> tuple[int, int]:
        """Return the bytes of a device's memory that are free, and all of them.

        Raises:
            NotAvailableError: If the vendor's module does not tell.
        """
        ...
