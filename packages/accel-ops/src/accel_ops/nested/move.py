"""Send nested data to a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch

from accel_ops.nested.structures import is_container, map_children, rebuild_mapping

T = TypeVar("T")


def send_to_device(
    tensor: T,
    device: torch.device | str | int,
    non_blocking: bool = False,
    skip_keys: str | Sequence[str] | None = None,
) -> T:
    """Return nested data with all movable values on ``device``; other values are returned unchanged.

    Args:
        tensor: Tensors or objects with a method ``.to`` (which decides how they move), nested in lists,
            tuples, named tuples, mappings and dataclasses.
        device: Target device.
        non_blocking: Do not wait for the copies. Only copies from pinned memory overlap with other work;
            after a copy to the CPU, synchronize the device before reading.
        skip_keys: Keys of mappings, on any level, whose values are not moved.
    """
    skipped = frozenset((skip_keys,) if isinstance(skip_keys, str) else (skip_keys or ()))

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(device, non_blocking=non_blocking)
        if moves_itself(value):
            return _move_object(value, device, non_blocking=non_blocking)
        if not is_container(value):
            return value
        if skipped and isinstance(value, Mapping):
            return _move_mapping(value)
        return map_children(value, move)

    def _move_mapping(value: Mapping[Any, Any]) -> Any:
        moved = {key: item if key in skipped else move(item) for key, item in value.items()}
        return rebuild_mapping(value, moved)

    moved: T = move(tensor)
    return moved


def moves_itself(value: object) -> bool:
    """Whether the value has a callable ``to``, other than a class or a named tuple with such a field."""
    return callable(getattr(value, "to", None)) and not isinstance(value, type)


def _move_object(value: Any, device: torch.device | str | int, *, non_blocking: bool) -> Any:
    """Call the object's ``to``, without ``non_blocking`` if it does not accept it."""
    if not non_blocking:
        return value.to(device)
    try:
        return value.to(device, non_blocking=True)
    except (
        TypeError
    ):  # e.g. BatchEncoding before transformers 4.48; any other TypeError is raised again by the next call
        return value.to(device)
