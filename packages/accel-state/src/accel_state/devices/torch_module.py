"""Devices that are driven through a module ``torch.<name>`` like ``torch.cuda``."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import torch

from accel_state.devices.base import VendorBackend
from accel_state.devices.protocol import DeviceRng
from accel_state.devices.vendors import Vendor
from accel_state.errors import ConfigError, NotAvailableError
from accel_state.topology import Topology
from accel_state.user_warnings import warn_user


class ModuleRng:
    """The random state of the vendor's current device."""

    def __init__(self, backend: TorchModuleBackend) -> None:
        self._backend = backend

    def get_state(self) -> torch.Tensor:
        state: torch.Tensor = self._backend.rng_module.get_rng_state()
        return state

    def set_state(self, state: torch.Tensor) -> None:
        self._backend.rng_module.set_rng_state(state)

    def seed(self, seed: int) -> None:
        self._backend.rng_module.manual_seed_all(seed)


class TorchModuleBackend(VendorBackend):
    """One process per device, found as ``torch.<name>`` once the vendor's plugin is imported."""

    def __init__(self, vendor: Vendor) -> None:
        super().__init__(vendor)
        self.rng: DeviceRng = ModuleRng(self)

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
        return int(self.module.device_count())

    def device(self, local_rank: int) -> torch.device:
        return torch.device(self.name, local_rank)

    def place(self, topology: Topology) -> torch.device:
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
        self.module.set_device(device)

    def empty_cache(self) -> None:
        self.module.empty_cache()

    def why_not_dtype(self, dtype: torch.dtype) -> str | None:
        if dtype in (torch.float64, torch.complex128) and hasattr(self.module, "get_device_properties"):
            if not getattr(self.module.get_device_properties(), "has_fp64", True):
                return f"This {self.vendor.title} has no numbers of 64 bits."
        return super().why_not_dtype(dtype)

    def _computes_in(self, dtype: torch.dtype) -> bool:
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
    """Say why a vendor's package that is installed cannot be imported, with a warning the first time."""
    try:
        importlib.import_module(plugin)
    except (ImportError, OSError) as error:
        # Typically a driver's library that is missing on this machine.
        reason = f"`{plugin}` is installed but cannot be imported, so its devices are not used: {error}"
        warn_user(reason, main_process_only=False)
        return reason
    return None
