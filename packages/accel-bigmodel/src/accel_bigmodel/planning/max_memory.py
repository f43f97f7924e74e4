"""The memory that a model may use on each device: detected, limited, and balanced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import nn

from accel_bigmodel.planning.sizes import compute_module_sizes
from accel_ops.byte_sizes import convert_file_size_to_int
from accel_state.devices import current_device_backend, device_backend
from accel_state.enums import CustomDtype
from accel_state.errors import UnknownNameError

MaxMemory: TypeAlias = Mapping[int | str, float | str]
Dtype: TypeAlias = str | torch.dtype | CustomDtype

_NAMES = ("mps", "cpu", "disk")


def get_max_memory(max_memory: MaxMemory | None = None) -> dict[int | str, int]:
    """Return the bytes that a model may use on each device: accelerators by number, then ``"cpu"``, then ``"disk"``.

        get_max_memory({"cpu": "30GiB", 0: "10GiB"})  # {0: 10737418240, "cpu": 32212254720}

    Args:
        max_memory: Bytes, or strings such as ``"10GiB"``, by device, returned as integers in that order; other
            devices are not used. ``None`` uses the memory that is free now.

    Raises:
        ConfigError: If a limit is no size.
        UnknownNameError: If a key is neither a number nor ``mps``, ``cpu`` or ``disk``.
    """
    if max_memory is None:
        return _free_memory()
    for device in max_memory:
        if not isinstance(device, int) and device not in _NAMES:
            raise UnknownNameError.of("device in `max_memory`", str(device), [*_NAMES, "0", "1"])
    limits = {device: convert_file_size_to_int(size) for device, size in max_memory.items()}
    numbers = sorted(device for device in limits if isinstance(device, int))
    return {device: limits[device] for device in [*numbers, *_NAMES] if device in limits}


def get_balanced_memory(
    model: nn.Module,
    max_memory: MaxMemory | None = None,
    no_split_module_classes: Sequence[str] | None = None,
    dtype: Dtype | None = None,
    special_dtypes: Mapping[str, Dtype] | None = None,
    low_zero: bool = False,
) -> dict[int | str, int]:
    """Return ``max_memory`` lowered so that `infer_auto_device_map` distributes the model over all accelerators.

    Each gets its share and memory for one more layer, so that rounding does not push parts to the CPU; the last one
    keeps its limit. With fewer than two accelerators the limits are not changed.

    Args:
        model: On any device, meta included.
        max_memory: As for `get_max_memory`.
        no_split_module_classes: Names of classes that stay on one device.
        dtype: What floating-point weights will be converted to.
        special_dtypes: Exceptions, by name of the tensor.
        low_zero: Keep the first accelerator free for other work, unless the model needs its memory.
    """
    limits = get_max_memory(max_memory)
    shared = [device for device in limits if isinstance(device, int) and limits[device] > 0]
    if len(shared) < 2:
        return limits
    sizes = compute_module_sizes(model, dtype=dtype, special_dtypes=special_dtypes)
    share = sizes[""] // (len(shared) - 1 if low_zero else len(shared))
    share += _headroom(model, sizes, no_split_module_classes)
    for device in shared[:-1]:
        limits[device] = min(limits[device], share)
    if low_zero:
        others = sum(limits[device] for device in shared[1:])
        limits[shared[0]] = min(limits[shared[0]], max(0, sizes[""] - others))
    return limits


def _headroom(model: nn.Module, sizes: Mapping[str, int], not_split: Sequence[str] | None) -> int:
    """Return 1.25 times the size of the largest unsplit block, or of the average layer if that is larger."""
    largest = 0
    if not_split:
        blocks = [name for name, module in model.named_modules() if type(module).__name__ in not_split]
        largest = max((sizes.get(name, 0) for name in blocks), default=0)
    leaves = [sizes[name] for name, module in model.named_modules() if _is_layer(module) and sizes.get(name)]
    average = sum(leaves) // max(len(leaves), 1)
    return int(1.25 * max(largest, average))


def _is_layer(module: nn.Module) -> bool:
    return not any(True for _ in module.children())


def _free_memory() -> dict[int | str, int]:
    backend = current_device_backend()
    free: dict[int | str, int] = {}
    if backend.name != "cpu":
        for number in range(backend.count()):
            key = backend.name if backend.name == "mps" else number
            free[key] = backend.free_and_total_bytes(backend.device(number))[0]
            if hasattr(backend.module, "memory_reserved"):  # torch's cached memory is available to the model
                free[key] += backend.module.memory_reserved(number) - backend.module.memory_allocated(number)
    if backend.name != "mps":  # it shares its memory with the CPU
        free["cpu"] = device_backend("cpu").free_and_total_bytes()[0]
    return free
