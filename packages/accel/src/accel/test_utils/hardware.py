"""The device that tests run on, the number of devices, and the memory in use."""

from __future__ import annotations

from collections.abc import Callable

torch_device: str
"""The device type, as torch calls it (``cuda``)."""
device_count: int
"""The number of devices that the process sees."""
memory_allocated_func: Callable[[], int]
"""Returns the bytes that tensors take on the current device; 0 if the device does not count them."""


def get_backend() -> tuple[str, int, Callable[[], int]]:
    """Return `torch_device`, `device_count` and `memory_allocated_func`."""
    import torch

    from accel_state.devices import current_device_backend

    device = current_device_backend()
    counter = (
        None
        if device.name == "cpu"
        else getattr(torch.get_device_module(device.name), "memory_allocated", None)
    )
    return device.name, device.count(), counter or (lambda: 0)


def __getattr__(name: str) -> object:
    names = ("torch_device", "device_count", "memory_allocated_func")
    if name in names:
        return get_backend()[names.index(name)]
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`", name=name)
