"""Attributes that another object owns."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any


def delegated(path: str, *, convert: Callable[[Any], Any] | None = None, replaces_items: bool = False) -> Any:
    """Return a property that is read from, and assigned to, another object. The class declares its type.

    Args:
        path: Attributes from the object with the property to the value, such as ``_runtime.device``.
        convert: Converts an assigned value.
        replaces_items: The value is a list that others hold: an assignment replaces its items.
    """
    owner, _, name = path.rpartition(".")
    value_of, owner_of = attrgetter(path), attrgetter(owner) if owner else None

    def assign(instance: object, value: Any) -> None:
        if convert is not None:
            value = convert(value)
        if replaces_items:
            value_of(instance)[:] = value
        else:
            setattr(instance if owner_of is None else owner_of(instance), name, value)

    return property(value_of, assign)
