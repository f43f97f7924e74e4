"""Logged values as numbers, as snapshots, as plain data and tables for files; and whether a run ends with an error."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any


def as_number(value: Any) -> int | float | None:
    """Return a number, or the element of a one-element tensor or array, as a Python number; else ``None``.

    Waits for the device of a tensor.
    """
    if isinstance(value, int | float):
        return value
    num_elements = value.numel() if hasattr(value, "numel") else getattr(value, "size", 1)
    if num_elements != 1 or not hasattr(value, "item"):
        return None
    number = value.item()
    return number if isinstance(number, int | float) else None


def as_plain_data(value: Any) -> Any:
    """Return ``value`` as JSON and YAML types: numbers, strings, lists and dicts; other objects as text.

    Tensors of any shape and device become numbers or nested lists. JSON has no NaN and infinities, so they become the
    strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, which ``float`` reads back.
    """
    if value is None or isinstance(value, str):
        return value
    number = as_number(value)
    if number is not None:
        return number if isinstance(number, int) or math.isfinite(number) else json.dumps(number)
    if isinstance(value, Mapping):
        return {str(key): as_plain_data(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_plain_data(inner) for inner in value]
    if hasattr(value, "tolist"):
        return as_plain_data(value.tolist())
    return str(value)


def with_numbers(values: Any) -> Any:
    """Replace one-element tensors (on any device) and arrays by numbers, also in dicts and lists."""
    return in_containers(lambda value: value if (number := as_number(value)) is None else number, values)


def in_containers(replace: Callable[[Any], Any], value: Any) -> Any:
    """Return ``replace`` of ``value``, or of what is in a mapping, list or tuple, however deep."""
    if isinstance(value, Mapping):
        return {key: in_containers(replace, inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(in_containers(replace, inner) for inner in value)
    return replace(value)


def as_array(values: Any) -> Any:
    """Return a tensor of any shape and device, an array, a Pillow image or a list as a NumPy array."""
    import numpy

    if is_tensor(values):
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() else values  # NumPy has no bfloat16
    return numpy.asarray(values)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested dicts: ``{"loss": {"train": 1}}`` becomes ``{"loss/train": 1}``."""
    flattened: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flattened.update(flat(value, f"{prefix}{name}/"))
        else:
            flattened[f"{prefix}{name}"] = value
    return flattened


def frozen(value: Any) -> Any:
    """Return a snapshot of ``value`` that later changes do not affect, without waiting for a device.

    Tensors of any shape are cloned on their device, also in containers; `thawed` converts them to numbers later, in
    another thread. Arrays, Pillow images and pandas data frames are copied. Other objects are passed through.
    """
    return in_containers(_snapshot, value)


def _snapshot(value: Any) -> Any:
    if is_tensor(value):
        return _FrozenTensor(value)
    if hasattr(value, "copy") and (hasattr(value, "__array_interface__") or hasattr(value, "__array__")):
        return value.copy()
    return value


def thawed(value: Any) -> Any:
    """Return the value of a snapshot by `frozen`, with one-element tensors as numbers and other tensors on the CPU."""
    return in_containers(lambda each: each.thaw() if isinstance(each, _FrozenTensor) else each, value)


class _FrozenTensor:
    """A detached clone on its device, with an event that other streams must wait for before they read it."""

    __slots__ = ("_clone", "_ready")

    def __init__(self, tensor: Any) -> None:
        self._clone = tensor.detach().clone()
        self._ready = _event_on(self._clone.device)

    def thaw(self) -> Any:
        if self._ready is not None:
            self._ready.synchronize()
        number = as_number(self._clone)
        return self._clone.cpu() if number is None else number


def _event_on(device: Any) -> Any:
    """Record an event on the device's current stream; None on the CPU and on lazy devices, which need none."""
    if device.type == "cpu":
        return None
    import torch

    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != device.type:
        return None
    return torch.accelerator.current_stream(device).record_event()


def is_tensor(value: Any) -> bool:
    """Whether ``value`` is a torch tensor, or behaves like one."""
    # Duck-typed: `isinstance` would import torch also in programs that log plain numbers.
    return hasattr(value, "detach") and hasattr(value, "clone") and hasattr(value, "device")


def is_data_frame(rows: Any) -> bool:
    """Whether the rows of a table are a pandas data frame, which has the names of the columns."""
    return hasattr(rows, "to_dict")


def file_name(table_name: str, *, step: int | None, suffix: str) -> str:
    """Return the file name for a table, such as ``words_3.csv`` for ``words`` at step 3; an existing suffix is kept."""
    path = PurePath(table_name)
    end = "" if step is None else f"_{step}"
    return str(path.with_name(f"{path.stem}{end}{path.suffix or suffix}"))


def is_handling_error() -> bool:
    """Whether an exception is being handled: in `except`, in `finally` or at the end of a `with` block."""
    return sys.exc_info()[1] is not None


def has_ended_by_error() -> bool:
    """Whether the interpreter exits because of an unhandled exception; for use in `atexit` functions."""
    # Set before the traceback is printed. `last_value` can go when Python 3.11 is no longer supported.
    return getattr(sys, "last_exc", getattr(sys, "last_value", None)) is not None
