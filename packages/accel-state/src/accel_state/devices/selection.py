"""Which kind of device a process runs on."""

from __future__ import annotations

import importlib
from functools import cache

import torch

from accel_state.devices.protocol import DeviceBackend
from accel_state.errors import NotAvailableError, UnknownNameError

# Looked at from the top; the first that is available is used. The CPU, always available, comes last.
_BACKENDS = {
    "mlu": "accel_state.devices.mlu:MluBackend",
    "sdaa": "accel_state.devices.sdaa:SdaaBackend",
    "musa": "accel_state.devices.musa:MusaBackend",
    "npu": "accel_state.devices.npu:NpuBackend",
    "hpu": "accel_state.devices.hpu:HpuBackend",
    "neuron": "accel_state.devices.neuron:NeuronBackend",
    "xla": "accel_state.devices.xla:XlaBackend",
    "cuda": "accel_state.devices.cuda:CudaBackend",
    "xpu": "accel_state.devices.xpu:XpuBackend",
    "mps": "accel_state.devices.mps:MpsBackend",
    "cpu": "accel_state.devices.cpu:CpuBackend",
}


def device_backend_names() -> list[str]:
    """Return every kind of device, the preferred first."""
    return list(_BACKENDS)


@cache
def device_backend(name: str) -> DeviceBackend:
    """Return the backend of a device type by torch's name for it.

    Raises:
        UnknownNameError: If no file of this folder covers the name.
    """
    if name not in _BACKENDS:
        raise UnknownNameError.of("device", name, _BACKENDS)
    module_name, _, class_name = _BACKENDS[name].partition(":")
    backend: DeviceBackend = getattr(importlib.import_module(module_name), class_name)()
    return backend


def device_backend_of(device: torch.device) -> DeviceBackend:
    """Return the backend that drives ``device``."""
    return device_backend(device.type)


def current_device_backend(*, cpu: bool = False) -> DeviceBackend:
    """Return the backend that this process should use: the CPU if asked, else the first available."""
    if cpu:
        return device_backend("cpu")
    return next(backend for backend in map(device_backend, _BACKENDS) if backend.is_available())


def require_device_backend(name: str) -> DeviceBackend:
    """Return a backend that was asked for by name.

    Raises:
        NotAvailableError: If this process sees no such device.
    """
    backend = device_backend(name)
    if not backend.is_available():
        available = [known for known in _BACKENDS if device_backend(known).is_available()]
        raise NotAvailableError(
            f"The device `{name}` was asked for, but none is available here. Available: "
            f"{', '.join(available)}."
        )
    return backend
