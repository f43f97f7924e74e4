"""Device vendors: their table, the class that drives their devices, and a file for each that differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_state.lazy import attach

if TYPE_CHECKING:
    from accel_state.devices.backend import DeviceBackend, DeviceRng
    from accel_state.devices.selection import (
        current_device_backend,
        device_backend,
        device_backend_of,
        require_device_backend,
    )
    from accel_state.devices.vendors import Vendor, find_vendor, known_vendors, register_vendor

__all__ = [
    "DeviceBackend",
    "DeviceRng",
    "Vendor",
    "current_device_backend",
    "device_backend",
    "device_backend_of",
    "find_vendor",
    "known_vendors",
    "register_vendor",
    "require_device_backend",
]

_HOMES = {
    "backend": ("DeviceBackend", "DeviceRng"),
    "vendors": ("Vendor", "find_vendor", "known_vendors", "register_vendor"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__getattr__, __dir__, _ = attach(
    __name__, {name: f"{__name__}.{_HOME_OF.get(name, 'selection')}" for name in __all__}
)
