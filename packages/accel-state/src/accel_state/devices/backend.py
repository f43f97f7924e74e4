"""`DeviceBackend`, the class that drives one kind of device, and the choice of the kind for a process.

A vendor whose devices differ has a subclass in its file.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from accel_state.devices.vendors import Vendor, find_vendor, known_vendors
from accel_state.enums import DistributedType
from accel_state.errors import ConfigError, NotAvailableError
from accel_state.topology import Topology
from accel_state.user_warnings import warn_user

_PRECISIONS = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
}
"""The keys of `Vendor.precisions`."""


class DeviceBackend:
    """One kind of device: the number of devices, the device of this process, the communication between processes.

    This class drives devices through a module ``torch.<name>`` like ``torch.cuda``, one process per device.
    """

    def __init__(self, vendor: Vendor) -> None:
        self.vendor = vendor

    @property
    def name(self) -> str:
        """The device type, as torch calls it (``cuda``)."""
        return self.vendor.name

    @property
    def collective_backend(self) -> str | None:
        """The process group backend of several processes; None if only one process can run."""
        return self.vendor.collective_backend

    @property
    def distributed_type(self) -> DistributedType:
        """The type of a run of several processes on this device."""
        return self.vendor.distributed_type

    @property
    def module(self) -> Any:
        """The vendor's ``torch.<name>``, its plugin imported."""
        if self.vendor.plugin is not None:
            importlib.import_module(self.vendor.plugin.module)
        return getattr(torch, self.name)

    @property
    def rng_module(self) -> Any:
        """The vendor's module with the functions of its random state."""
        return self.module

    def get_rng_state(self) -> torch.Tensor:
        """Return the random state of the current device: ``(num_bytes,)`` uint8 on the CPU, as in torch."""
        state: torch.Tensor = self.rng_module.get_rng_state()
        return state

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Set the random state of the current device, with the shape and device of `get_rng_state`."""
        self.rng_module.set_rng_state(state)

    def seed_all(self, seed: int) -> None:
        """Seed every device of this kind that the process sees."""
        self.rng_module.manual_seed_all(seed)

    def unavailable_reason(self, *, check_device: bool = False) -> str | None:
        """Return why this process can use no device of this kind, None if it can. No runtime is initialized.

        Args:
            check_device: Also count the devices, which may initialize the vendor's runtime.
        """
        reason = self.vendor.not_installed_reason()
        if reason is None and self.vendor.plugin is not None:
            reason = import_error(self.vendor.plugin.module)
            if reason is None and not hasattr(torch, self.name):
                reason = (
                    f"`{self.vendor.plugin.module}` was imported, but `torch.{self.name}` does not exist."
                )
        if reason is not None:
            return reason
        is_present = self.count() > 0 if check_device else self.module.is_available()
        return None if is_present else self._no_device_reason()

    def _no_device_reason(self) -> str:
        return f"`torch.{self.name}` finds no {self.vendor.label}. {self.vendor.hint}".rstrip()

    def count(self) -> int:
        """Return the number of devices of this kind that the process sees."""
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
            # `srun --gpus-per-task=1`, MPI wrappers, Ray and Kubernetes show each process one device only.
            return self.device(0)
        raise ConfigError(
            f"{topology.local_world_size} processes run on this machine, but each of them sees {num_devices} "
            f"`{self.name}` devices. Start at most {num_devices} (`--num_processes {num_devices}`), show each process "
            "a separate device, or pass `cpu=True` (`--cpu`) to run on the CPU."
        )

    def set_device(self, device: torch.device) -> None:
        """Make ``device`` the current one of this process."""
        self.module.set_device(device)

    def refine_topology(self, topology: Topology) -> Topology:
        """Return the topology, with the ranks of the device's runtime if that assigns ranks."""
        return topology

    def claim(self, device: torch.device, topology: Topology) -> str:
        """Return the name of the device if only one rank may use it, empty if ranks can share it."""
        return ""

    def process_group_options(self) -> dict[str, Any]:
        """Return additional arguments of ``init_process_group`` on this device."""
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
            return self._no_64_bit_reason()
        name = _PRECISIONS.get(dtype)
        if name is None:
            return None
        if name not in self.vendor.precisions:
            return f"{name} is not supported on devices of this kind."
        if self._computes_in(dtype):
            return None
        return f"Here {name} needs {self.vendor.precisions[name]}."

    def supports(self, dtype: torch.dtype) -> bool:
        """Whether the device computes in ``dtype``."""
        return self.why_not_dtype(dtype) is None

    def _no_64_bit_reason(self) -> str | None:
        if hasattr(self.module, "get_device_properties"):
            if not getattr(self.module.get_device_properties(), "has_fp64", True):
                return f"This {self.vendor.label} has no 64-bit floating point."
        return None

    def _computes_in(self, dtype: torch.dtype) -> bool:
        """Whether the current device meets the requirement of ``dtype`` in `Vendor.precisions`."""
        module = self.module
        if dtype == torch.bfloat16 and hasattr(module, "is_bf16_supported"):
            # Older devices store bf16 and compute in fp32, which torch's modules count as support by default.
            has_bf16 = (
                module.is_bf16_supported(including_emulation=False)
                if self.vendor.plugin is None
                else module.is_bf16_supported()
            )
            if not has_bf16:
                return False
        # torch calls it on `privateuse1` devices; with another dtype it would disable autocast, with a warning.
        castable = getattr(module, "get_amp_supported_dtype", None)
        return castable is None or dtype in castable()

    def free_and_total_bytes(self, device: torch.device | None = None) -> tuple[int, int]:
        """Return the free and the total bytes of a device's memory.

        Raises:
            NotAvailableError: If the vendor's module does not report them.
        """
        module = self.module
        if not hasattr(module, "mem_get_info"):
            raise NotAvailableError(
                f"`torch.{self.name}` does not report the free memory of its devices. Set it yourself, such as by "
                "`max_memory`."
            )
        free, total = module.mem_get_info(device)
        return int(free), int(total)


def device_backend(name: str) -> DeviceBackend:
    """Return the backend of a device type by torch's name for it.

    Raises:
        UnknownNameError: If no vendor has the name.
    """
    return _backend_of(find_vendor(name))


def device_backend_of(device: torch.device) -> DeviceBackend:
    """Return the backend that drives ``device``."""
    return device_backend(device.type)


def current_device_backend(*, cpu: bool = False) -> DeviceBackend:
    """Return the backend that this process should use: the CPU's if ``cpu``, else the first available."""
    return device_backend("cpu") if cpu else next(_available_backends())


def require_device_backend(name: str) -> DeviceBackend:
    """Return the backend of the device type ``name``.

    Raises:
        NotAvailableError: If this process sees no such device.
    """
    backend = device_backend(name)
    reason = backend.unavailable_reason()
    if reason is not None:
        available = [other.name for other in _available_backends()]
        raise NotAvailableError(
            f"The device `{name}` was requested, but none is available: {reason} Available: {', '.join(available)}."
        )
    return backend


def _available_backends() -> Iterator[DeviceBackend]:
    backends = map(_backend_of, known_vendors())
    return (backend for backend in backends if backend.unavailable_reason() is None)


@cache
def _backend_of(vendor: Vendor) -> DeviceBackend:
    module_name, _, class_name = vendor.backend.partition(":")
    backend: DeviceBackend = getattr(importlib.import_module(module_name), class_name)(vendor)
    return backend


@cache
def import_error(plugin: str) -> str | None:
    """Return why an installed package of a vendor cannot be imported, with a warning the first time; None if it can."""
    try:
        importlib.import_module(plugin)
    except (ImportError, OSError) as error:
        # Typically a driver's library that is missing on this machine.
        reason = (
            f"`{plugin}` is installed but cannot be imported, so its devices are not used: {error}. Install the build "
            "that fits your torch, or uninstall it."
        )
        warn_user(reason, main_process_only=False)
        return reason
    return None
