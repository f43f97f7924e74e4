"""The `_shared_state` of the state classes: what a view shows, as a dict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class SharedState:
    """A class attribute that gives a fresh dict of the state's values, empty while there is no state."""

    def __init__(self, collect: Callable[[], dict[str, Any]]) -> None:
        self._collect = collect

    def __get__(self, instance: object, owner: type | None = None) -> dict[str, Any]:
        return self._collect()
