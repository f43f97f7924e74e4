"""Tracker methods that run on the main process only."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__accel_on_main_process__"


def on_main_process(function: F) -> F:
    """Run a tracker's method on the main process only; elsewhere it returns ``None``.

    A tracker with ``main_process_only = False`` runs it on every process.
    """

    @wraps(function)
    def only_on_main(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not runs_here(self):
            return None
        return function(self, *args, **kwargs)

    setattr(only_on_main, _MARK, True)
    return cast(F, only_on_main)


class NoRun:
    """Stand-in for a run object on processes that do not log: every attribute and call returns it."""

    def __getattr__(self, name: str) -> NoRun:
        # Pickle and NumPy look up special methods and would believe that every protocol is implemented.
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> NoRun:
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        return

    def __getitem__(self, key: Any) -> NoRun:
        return self

    def __enter__(self) -> NoRun:
        return self

    def __exit__(self, *error: object) -> None:
        return


def runs_here(tracker: Any) -> bool:
    """Whether methods marked with `on_main_process` run on this process."""
    return not getattr(tracker, "main_process_only", True) or is_main_process()


def is_marked(method: Any) -> bool:
    """Whether a method is marked with `on_main_process`."""
    return bool(getattr(method, _MARK, False))


def is_main_process() -> bool:
    """Whether this is the main process; creates the `PartialState` if there is none yet."""
    from accel_state import PartialState

    return PartialState().is_main_process
