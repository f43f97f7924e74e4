"""The class that drives one kind of device; what differs for a vendor is in a subclass of its own file."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, Protocol

import torch
import torch.distributed as dist

from accel_state.devices.vendors import Vendor
from accel_state.errors import ConfigError, NotAvailableError
from accel_state.topology import Topology
from accel_state.user_warnings import warn_user

_FORMATS = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
}
"""The keys of `Vendor.precisions`."""


class DeviceRng(Protocol):
    """The random state of a kind of device, for the device that is current in this process."""

    def get_state(self) -> torch.Tensor: ...

    def set_state(self, state: torch.Tensor) -> None: ...

    def seed(self, seed: int) -> None:
        """Seed every device of this kind that the process sees."""
        ...


class ModuleRng:
    """The random state of a device that is driven through ``torch.<name>``."""

    def __init__(self, backend: DeviceBackend) -> None:
        self._backend = backend

    def get_state(self) -> torch.Tensor:
        state: torch.Tensor = self._backend.rng_module.get_rng_state()
        return state

    def set_state(self, state: torch.Tensor) -> None:
        self._backend.rng_module.set_rng_state(state)

    def seed(self, seed: int) -> None:
        self._backend.rng_module.manual_seed_all(seed)


class DeviceBackend:
    """One kind of device: how many there are, which one is this process's, how processes communicate.

    As it is, it drives devices through a module ``torch.<name>`` like ``torch.cuda``, one process for each.
    """

    rng: DeviceRng

    def __init__(self, vendor: Vendor) -> None:
        self.vendor = vendor
        self.rng = ModuleRng(self)

    @property
    def name(self) -> str:
        """What torch calls the device type (``cuda``)."""
        return self.vendor.name

    @property
    def collective_backend(self) -> str | None:
        """The process group backend of several processes; None where there can be one process only."""
        return self.vendor.collective_backend

    @property
    def distributed_type(self) -> str:
        """What users' code calls a run of several processes on this device."""
        return self.vendor.distributed_type

    @property
    def module(self) -> Any:
        """The vendor's ``torch.<name>``, its plugin imported."""
        if self.vendor.plugin is not None:
            importlib.import_module(self.vendor.plugin)
        return getattr(torch, self.name)

    @property
    def rng_module(self) -> Any:
        """Where the vendor keeps the functions of its random state."""
        return self.module

    def why_not(self, *, check_device: bool = False) -> str | None:
        """Return why this process can use no device of this kind, None if it can. No runtime is initialised.

        Args:
            check_device: Also ask how many there are, which may start the vendor's runtime.
        """
        reason = self.vendor.why_not_installed()
        if reason is None and self.vendor.plugin is not None:
            reason = why_not_importable(self.vendor.plugin)
        if reason is not None:
            return reason
        if not hasattr(torch, self.name):
            return f"`{self.vendor.plugin}` was imported, but `torch.{self.name}` is not there."
        present = self.count() > 0 if check_device else self.module.is_available()
        return None if present else self._why_none()

    def _why_none(self) -> str:
        return f"`torch.{self.name}` finds no {self.vendor.title}. {self.vendor.hint}".rstrip()

    def count(self) -> int:
        """Return how many devices of this kind the process sees."""
        return int(self.module.device_count())

    def device(self, local_rank: int) -> torch.device:
        """Return the device with that number on this machine."""
        return torch.device(self.name, local_rank)

    def place(self, topology: Topology) -> torch.device:
        """Return the device of a process.

        Raises:
            ConfigError: If the machine runs more processes than it has devices of this kind.
        """
        num_devices = self.count()
        if topology.local_world_size <= num_devices:
            return self.device(topology.local_rank)
        if num_devices == 1:
            # `srun --gpus-per-task=1`, MPI wrappers, Ray and Kubernetes show each process its own device only.
            return self.device(0)
        raise ConfigError(
            f"{topology.local_world_size} processes run on this machine, but each of them sees {num_devices} "
            f"`{self.name}` devices. Start at most {num_devices}, show each process one device of its own, or pass "
            "`cpu=True` (`--cpu`) to run on the CPU."
        )

    def set_device(self, device: torch.device) -> None:
        """Make ``device`` the current one of this process."""
        self.module.set_device(device)

    def refine_topology(self, topology: Topology) -> Topology:
        """Return the topology with what the device's own runtime knows."""
        return topology

    def process_group_options(self) -> dict[str, Any]:
        """Return what ``init_process_group`` needs on this device beyond backend and rendezvous."""
        return {}

    def barrier(self, device: torch.device) -> None:
        """Block until every rank of the default process group has called this."""
        dist.barrier()

    def empty_cache(self) -> None:
        """Release cached but unused memory of the device."""
        self.module.empty_cache()

    def why_not_dtype(self, dtype: torch.dtype) -> str | None:
        """Return why the current device does not compute in ``dtype``, None if it does."""
        if dtype in (torch.float64, torch.complex128):
            return self._why_not_64_bits()
        name = _FORMATS.get(dtype)
        if name is None:
            return None
        if name not in self.vendor.precisions:
            return f"On devices of this kind {name} is not offered."
        if self._computes_in(dtype):
            return None
        return f"Here {name} needs {self.vendor.precisions[name]}."

    def supports(self, dtype: torch.dtype) -> bool:
        """Whether the device computes in ``dtype``."""
        return self.why_not_dtype(dtype) is None

    def _why_not_64_bits(self) -> str | None:
        if hasattr(self.module, "get_device_properties"):
            if not getattr(self.module.get_device_properties(), "has_fp64", True):
                return f"This {self.vendor.title} has no numbers of 64 bits."
        return None

    def _computes_in(self, dtype: torch.dtype) -> bool:
        """Whether the current device has what `Vendor.precisions` says that ``dtype`` needs."""
        module = self.module
        if dtype == torch.bfloat16 and hasattr(module, "is_bf16_supported"):
            # Older devices store bf16 and compute in fp32; torch's own modules count that unless told not to.
            has_bf16 = (
                module.is_bf16_supported(including_emulation=False)
                if self.vendor.plugin is None
                else module.is_bf16_supported()
            )
            if not has_bf16:
                return False
        # What torch asks devices of its spare type; with another dtype it would switch autocast off, and warn.
        castable = getattr(module, "get_amp_supported_dtype", None)
        return castable is None or dtype in castable()

    def free_and_total_bytes(self, device: torch.device | None = None) -> tuple[int, int]:
        """Return the bytes of a device's memory that are free, and all of them.

        Raises:
            NotAvailableError: If the vendor's module does not tell.
        """
        module = self.module
        if not hasattr(module, "mem_get_info"):
            raise NotAvailableError(
                f"`torch.{self.name}` does not tell how much memory of a {self.vendor.title} is free. Say it yourself, "
                "such as by `max_memory`."
            )
        free, total = module.mem_get_info(device)
        return int(free), int(total)


@cache
def why_not_importable(plugin: str) -> str | None:
    """Return why a vendor's package that is installed cannot be imported, with a warning the first time."""
    try:
        importlib.import_module(plugin)
    except (ImportError, OSError) as error:
        # Typically a driver's library that is missing on this machine.
        reason = f"`{plugin}` is installed but cannot be imported, so its devices are not used: {error}"
        warn_user(reason, main_process_only=False)
        return reason
    return None
