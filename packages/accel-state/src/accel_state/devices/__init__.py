"""Device vendors: the protocol, and one file per member."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_state.lazy import attach

if TYPE_CHECKING:
    from accel_state.devices.protocol import DeviceBackend, DeviceMemory, DeviceRng
    from accel_state.devices.selection import (
        current_device_backend,
        device_backend,
        device_backend_names,
        device_backend_of,
        require_device_backend,
    )

__all__ = [
    "DeviceBackend",
    "DeviceMemory",
    "DeviceRng",
    "current_device_backend",
    "device_backend",
    "device_backend_names",
    "device_backend_of",
    "require_device_backend",
]

_PROTOCOL = "accel_state.devices.protocol"
_SELECTION = "accel_state.devices.selection"

__getattr__, __dir__, _ = attach(
    __name__,
    {name: _PROTOCOL if name.startswith("Device") else _SELECTION for name in __all__},
)
