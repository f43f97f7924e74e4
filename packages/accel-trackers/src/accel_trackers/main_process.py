"""Methods of trackers that run on the main process only."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__accel_on_main_process__"


def on_main_process(function: F) -> F:
    """Make a tracker's method do nothing, and return ``None``, on all processes but the main one.

    A tracker with ``main_process_only = False`` runs it everywhere.
    """

    @wraps(function)
    def only_on_main(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not runs_here(self):
            return None
        return function(self, *args, **kwargs)

    setattr(only_on_main, _MARK, True)
    return cast(F, only_on_main)


class NoRun:
    """What processes that do not log have in place of a library's run object: every attribute and call gives itself."""

    def __getattr__(self, name: str) -> NoRun:
        # Protocols, such as pickling and NumPy's, ask for methods that there are not.
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
    """Whether this is the main process; sets up the state of this process if nothing has done so yet."""
    from accel_state import PartialState

    return PartialState().is_main_process
