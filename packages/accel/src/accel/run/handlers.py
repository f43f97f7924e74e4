"""The kwargs handlers of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from accel_backends import collect
from accel_state.kwargs_handler import KwargsHandler

Handler = TypeVar("Handler", bound=KwargsHandler)


class Handlers(Mapping[type[KwargsHandler], KwargsHandler]):
    """Handlers by their class; what is replaced holds for everything that is prepared later.

    Args:
        given: The user's handlers.

    Raises:
        ConfigError: If one is of an unknown class, or two are of the same class.
    """

    def __init__(self, given: Iterable[KwargsHandler] | None) -> None:
        self._handlers = dict(collect(given))

    def __getitem__(self, kind: type[KwargsHandler]) -> KwargsHandler:
        return self._handlers[kind]

    def __iter__(self) -> Iterator[type[KwargsHandler]]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)

    def of(self, kind: type[Handler]) -> Handler | None:
        """Return the handler of a class, None if there is none."""
        found = self._handlers.get(kind)
        return found if isinstance(found, kind) else None

    def replace(self, kind: type[Handler], handler: Handler | None) -> None:
        """Put `handler` in the place of the one of its class; None removes that."""
        if handler is None:
            self._handlers.pop(kind, None)
        else:
            self._handlers[kind] = handler
