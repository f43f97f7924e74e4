"""Attributes that another object owns."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any


class Delegated:
    """An attribute that is read from, and assigned to, another object.

    Args:
        path: Attributes from the object to the value, such as ``_runtime.device``.
        convert: Converts an assigned value.
        replaces_items: The value is a list that others hold: an assignment replaces its items.
    """

    def __init__(self, path: str, convert: Callable[[Any], Any] | None, *, replaces_items: bool) -> None:
        owner, _, self._name = path.rpartition(".")
        self._owner = attrgetter(owner) if owner else None
        self._value, self._convert, self._replaces_items = attrgetter(path), convert, replaces_items

    def __get__(self, instance: object, kind: type | None = None) -> Any:
        return self if instance is None else self._value(instance)

    def __set__(self, instance: object, value: Any) -> None:
        if self._convert is not None:
            value = self._convert(value)
        if self._replaces_items:
            self._value(instance)[:] = value
        else:
            setattr(instance if self._owner is None else self._owner(instance), self._name, value)


def delegated(path: str, *, convert: Callable[[Any], Any] | None = None, replaces_items: bool = False) -> Any:
    """Return a `Delegated` attribute, whose type the class declares."""
    return Delegated(path, convert, replaces_items=replaces_items)
