"""Which kind of device a process runs on."""

from __future__ import annotations

import importlib
from functools import cache

import torch

from accel_state.devices.backend import DeviceBackend
from accel_state.devices.vendors import Vendor, find_vendor, known_vendors
from accel_state.errors import NotAvailableError


def device_backend(name: str) -> DeviceBackend:
    """Return the backend of a device type by torch's name for it.

    Raises:
        UnknownNameError: If no vendor has the name.
    """
    return _backend_of(find_vendor(name))


@cache
def _backend_of(vendor: Vendor) -> DeviceBackend:
    module_name, _, class_name = vendor.backend.partition(":")
    backend: DeviceBackend = getattr(importlib.import_module(module_name), class_name)(vendor)
    return backend


def device_backend_of(device: torch.device) -> DeviceBackend:
    """Return the backend that drives ``device``."""
    return device_backend(device.type)


def current_device_backend(*, cpu: bool = False) -> DeviceBackend:
    """Return the backend that this process should use: the CPU if asked, else the first available."""
    if cpu:
        return device_backend("cpu")
    return next(backend for backend in map(_backend_of, known_vendors()) if backend.why_not() is None)


def require_device_backend(name: str) -> DeviceBackend:
    """Return a backend that was asked for by name.

    Raises:
        NotAvailableError: If this process sees no such device.
    """
    backend = device_backend(name)
    reason = backend.why_not()
    if reason is not None:
        available = [vendor.name for vendor in known_vendors() if _backend_of(vendor).why_not() is None]
        raise NotAvailableError(
            f"The device `{name}` was asked for, but none is available here: {reason} Available: "
            f"{', '.join(available)}."
        )
    return backend
