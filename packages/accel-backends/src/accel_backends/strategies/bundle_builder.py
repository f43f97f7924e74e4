"""Sort the objects of one call of `prepare` by kind, and put the prepared ones back into the caller's order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from accel_backends.strategies.bundle import Bundle, InTurn, Placement

KINDS: list[tuple[type, str]] = [
    (nn.Module, "models"),
    (Optimizer, "optimizers"),
    (LRScheduler, "schedulers"),
    (DataLoader, "loaders"),
]
"""Class of an object, and the list of a `Bundle` that it belongs to; other objects need no preparation."""


def register_kind(kind: type, name: str) -> None:
    """Put objects of class ``kind`` into the `Bundle` list ``name`` from now on.

    A strategy calls this for what stands for an optimizer or a scheduler with it alone.
    """
    if (kind, name) not in KINDS:
        KINDS.append((kind, name))


def kind_of(thing: object) -> str | None:
    """Return the `Bundle` list for `thing`, or None where it needs no preparation."""
    return next((name for kind, name in KINDS if isinstance(thing, kind)), None)


class BundleBuilder:
    """Builds the bundle of one call of `prepare`; an object that is given twice is prepared once.

    Args:
        objects: The caller's objects.
        places: For each, whether to move it to the device.
        find_prepared: Returns the result of an earlier preparation of an object, None if there was none.
    """

    def __init__(
        self, objects: Sequence[Any], places: Sequence[bool], *, find_prepared: Callable[[Any], Any | None]
    ) -> None:
        self._objects = objects
        self._done: dict[int, Any] = {}
        self.bundle = Bundle()
        flags: dict[str, list[bool]] = {field.name: [] for field in fields(Bundle)}
        for thing, place in zip(objects, places, strict=True):
            name = kind_of(thing)
            if name is None or id(thing) in self._done:
                continue
            self._done[id(thing)] = find_prepared(thing)
            if self._done[id(thing)] is None:
                getattr(self.bundle, name).append(thing)
                flags[name].append(place)
        self.placement = Placement(
            models=tuple(flags["models"]),
            optimizers=tuple(flags["optimizers"]),
            loaders=tuple(flags["loaders"]),
        )

    def results(self, ready: Bundle) -> tuple[Any, ...]:
        """Return the prepared objects in the caller's order; `ready` is the prepared `bundle`."""
        done = dict(self._done)
        for field in fields(Bundle):
            given, prepared = getattr(self.bundle, field.name), getattr(ready, field.name)
            done |= {id(thing): result for thing, result in zip(given, prepared, strict=True)}
        found = [done.get(id(thing), thing) for thing in self._objects]
        return tuple(one.take() if isinstance(one, InTurn) else one for one in found)
