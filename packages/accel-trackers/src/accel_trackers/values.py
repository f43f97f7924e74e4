"""Logged values: numbers out of tensors, copies that later steps cannot change, plain data for files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from accel_trackers.figures import is_figure, picture_of


def as_number(value: Any) -> int | float | None:
    """Return the number in a Python number or a tensor or array of one element, ``None`` for all else.

    Waits for the device that a tensor is on.
    """
    if isinstance(value, int | float):
        return value
    item = getattr(value, "item", None)
    if item is None or _num_elements(value) != 1:
        return None
    number = item()
    return number if isinstance(number, int | float) else None


def as_plain_data(value: Any) -> Any:
    """Return ``value`` as JSON and YAML can hold it: numbers, strings, lists and dicts; text for all else.

    Numbers that JSON has no word for become the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, which
    ``float`` reads back.
    """
    if value is None or isinstance(value, str):
        return value
    number = as_number(value)
    if number is not None:
        return number if isinstance(number, int) or math.isfinite(number) else _name_of(number)
    if isinstance(value, Mapping):
        return {str(key): as_plain_data(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_plain_data(inner) for inner in value]
    if hasattr(value, "tolist"):
        return as_plain_data(value.tolist())
    return str(value)


def with_numbers(values: Any) -> Any:
    """Return ``values`` with numbers for tensors and arrays of one element, in dicts and lists too."""
    number = as_number(values)
    if number is not None:
        return number
    if type(values) is dict:
        return {name: with_numbers(value) for name, value in values.items()}
    if type(values) in (list, tuple):
        return type(values)(with_numbers(value) for value in values)
    return values


def as_array(values: Any) -> Any:
    """Return the numbers in a tensor, on any device, an array, a picture of Pillow or a list as an array of NumPy."""
    import numpy

    if is_tensor(values):
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() else values  # NumPy has no bfloat16
    return numpy.asarray(values)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return dicts in dicts as one: ``{"loss": {"train": 1}}`` becomes ``{"loss/train": 1}``."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{name}/"))
        else:
            found[f"{prefix}{name}"] = value
    return found


def frozen(value: Any) -> Any:
    """Return a copy that nothing done to ``value`` later changes, without waiting for any device.

    Tensors are cloned where they are, in containers too; `thawed` turns them into numbers later, in another
    thread. Arrays, pictures of Pillow and tables of pandas are copied. Other objects are handed on as they are.
    """
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, Mapping):
        return {key: frozen(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(frozen(inner) for inner in value)
    if is_tensor(value):
        return _FrozenTensor(value)
    if hasattr(value, "copy") and (hasattr(value, "__array_interface__") or hasattr(value, "__array__")):
        return value.copy()
    return value


def rendered(value: Any) -> Any:
    """Return ``value`` with pictures in place of figures, which may be drawn anew; in dicts and lists too."""
    if type(value) is dict:
        return {key: rendered(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(rendered(inner) for inner in value)
    return picture_of(value) if is_figure(value) else value


def thawed(value: Any) -> Any:
    """Return what `frozen` was given: tensors of one element as numbers, others on the CPU."""
    if isinstance(value, _FrozenTensor):
        return value.thaw()
    if type(value) is dict:
        return {key: thawed(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(thawed(inner) for inner in value)
    return value


class _FrozenTensor:
    """A detached clone on its device, with the event after which it may be read from another stream."""

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
    """Record an event on the current stream of an accelerator; the CPU and lazy devices need none."""
    if device.type == "cpu":
        return None
    import torch

    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != device.type:
        return None
    return torch.accelerator.current_stream(device).record_event()


def is_tensor(value: Any) -> bool:
    """Whether ``value`` is a tensor of torch, or as good as one."""
    # By what it can do: asking torch would import it for people who log plain numbers.
    return hasattr(value, "detach") and hasattr(value, "clone") and hasattr(value, "device")


def _num_elements(value: Any) -> int:
    if hasattr(value, "numel"):
        return int(value.numel())
    return int(getattr(value, "size", 1))


def _name_of(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"
