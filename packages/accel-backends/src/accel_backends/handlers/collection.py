"""The handlers of a run by their class."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from accel_backends.handlers.ddp import DistributedDataParallelKwargs
from accel_backends.handlers.fp8 import RECIPE_KINDS
from accel_backends.handlers.precision import AutocastKwargs, GradScalerKwargs
from accel_backends.handlers.profile import ProfileKwargs
from accel_state.errors import ConfigError
from accel_state.kwargs_handler import InitProcessGroupKwargs, KwargsHandler

KNOWN_HANDLERS: tuple[type[KwargsHandler], ...] = (
    AutocastKwargs,
    DistributedDataParallelKwargs,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    ProfileKwargs,
    *RECIPE_KINDS,
)


Handlers = dict[type[KwargsHandler], Any]
"""Handlers by their class. A handler that is replaced applies to everything that is prepared afterwards."""


def collect(kwargs_handlers: Iterable[KwargsHandler] | None) -> Handlers:
    """Return the handlers by their class; a subclass counts as the class it customizes.

    Args:
        kwargs_handlers: The user's handlers; None means none.

    Raises:
        ConfigError: If one is no handler, its class is unknown, or two are of the same class.
    """
    handlers = Handlers()
    for handler in kwargs_handlers or ():
        kind = _kind(handler)
        if kind in handlers:
            raise ConfigError(
                f"`kwargs_handlers` has two of `{kind.__name__}`. Pass one that holds all you want."
            )
        handlers[kind] = handler
    return handlers


def _kind(handler: object) -> type[KwargsHandler]:
    name = handler.__name__ if isinstance(handler, type) else type(handler).__name__
    if isinstance(handler, type):
        raise ConfigError(f"`kwargs_handlers` got the class `{name}`. Pass an object: `{name}(...)`.")
    for kind in KNOWN_HANDLERS:
        if isinstance(handler, kind):
            return kind
    listed = ", ".join(sorted(kind.__name__ for kind in KNOWN_HANDLERS))
    raise ConfigError(f"`kwargs_handlers` got a `{name}`, which is not supported. Known: {listed}.")
