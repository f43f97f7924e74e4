"""Takes the list of handlers a user gave and tells which is which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from accel_backends.handlers.autocast import AutocastKwargs
from accel_backends.handlers.ddp import DistributedDataParallelKwargs
from accel_backends.handlers.fp8 import RECIPE_KINDS
from accel_backends.handlers.grad_scaler import GradScalerKwargs
from accel_backends.handlers.profile import ProfileKwargs
from accel_state.errors import ConfigError
from accel_state.kwargs_handler import InitProcessGroupKwargs, KwargsHandler

Handlers = Mapping[type[KwargsHandler], KwargsHandler]

KNOWN_HANDLERS: tuple[type[KwargsHandler], ...] = (
    AutocastKwargs,
    DistributedDataParallelKwargs,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    ProfileKwargs,
    *RECIPE_KINDS,
)


def collect(
    kwargs_handlers: Iterable[KwargsHandler] | None,
    *,
    known: tuple[type[KwargsHandler], ...] = KNOWN_HANDLERS,
) -> Handlers:
    """Return the handlers by their class; a subclass counts as the class it customises.

    Args:
        kwargs_handlers: What the user gave; None means none.
        known: The classes that somebody reads.

    Raises:
        ConfigError: If one is no handler, is of a class that nobody reads, or if two are of the same class.
    """
    found: dict[type[KwargsHandler], KwargsHandler] = {}
    for handler in kwargs_handlers or ():
        kind = _kind(handler, known)
        if kind in found:
            raise ConfigError(
                f"`kwargs_handlers` has two of `{kind.__name__}`. Pass one that holds all you want."
            )
        found[kind] = handler
    return MappingProxyType(found)


def _kind(handler: object, known: tuple[type[KwargsHandler], ...]) -> type[KwargsHandler]:
    name = handler.__name__ if isinstance(handler, type) else type(handler).__name__
    if isinstance(handler, type):
        raise ConfigError(f"`kwargs_handlers` got the class `{name}`. Pass an object: `{name}(...)`.")
    for kind in known:
        if isinstance(handler, kind):
            return kind
    listed = ", ".join(sorted(kind.__name__ for kind in known))
    raise ConfigError(f"`kwargs_handlers` got a `{name}`, which nobody reads. Known: {listed}.")
