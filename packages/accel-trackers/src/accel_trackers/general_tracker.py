"""The base class of trackers: a name, a few attributes, and four methods, which may run on the main process only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from accel_trackers.errors import IncompleteTrackerError

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__accel_on_main_process__"
_REQUIRED = {
    "name": "a class attribute, its name in `log_with` and `get_tracker`",
    "requires_logging_directory": "a class attribute, whether it writes below `logging_dir`",
    "tracker": "a property that returns the run object of its library",
}


class GeneralTracker:
    """Base of all trackers; the methods here do nothing.

    A custom tracker sets ``name`` and ``requires_logging_directory``, has a property ``tracker``, and overrides the
    methods it needs. Mark them with `on_main_process` unless every process should log.

        class PrintTracker(GeneralTracker):
            name = "print"
            requires_logging_directory = False

            @property
            def tracker(self):
                return print

            @on_main_process
            def log(self, values, step=None, **kwargs):
                print(step, values)

    Args:
        _blank: Skip the check, for a placeholder whose methods do nothing on processes that do not log.

    Raises:
        IncompleteTrackerError: If one of the three is missing.
    """

    name: str
    requires_logging_directory: bool
    main_process_only: bool = True
    # True if `log` may be called from a background thread: for libraries that write while the caller waits.
    log_in_background: ClassVar[bool] = False

    if TYPE_CHECKING:
        # Only for type checkers: defined at run time, `check_complete` could not detect a class without it.
        @property
        def tracker(self) -> Any:
            """The run object of the tracker's library."""

    def __init__(self, _blank: bool = False) -> None:
        if not _blank:
            check_complete(self)

    @classmethod
    def why_not_available(cls) -> str | None:
        """Return why this tracker is unavailable and what to install, ``None`` if it is available."""
        return None

    def start(self) -> None:
        """Start the run. Called once on every process, before the other methods."""

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Store the configuration of the run. Called once, after `start`."""

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log ``values`` by name, for ``step`` if given. Tensors may be of any shape, on any device."""

    def finish(self) -> None:
        """End the run. All logged values are written when this returns."""


def check_complete(
    tracker: GeneralTracker | type[GeneralTracker], names: Iterable[str] = tuple(_REQUIRED)
) -> None:
    """Check that a tracker, or a tracker class, has the required attributes ``names``.

    Raises:
        IncompleteTrackerError: If one is missing.
    """
    missing = [name for name in names if name not in dir(tracker)]
    if missing:
        cls = tracker if isinstance(tracker, type) else type(tracker)
        needed = "; ".join(f"`{name}`, {_REQUIRED[name]}" for name in missing)
        raise IncompleteTrackerError(
            f"The tracker class `{cls.__name__}` lacks {needed}. Add it to the class."
        )


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
    """Whether methods marked with `on_main_process` run on this process; may create the `PartialState`."""
    if not getattr(tracker, "main_process_only", True):
        return True
    from accel_state import PartialState

    return PartialState().is_main_process


def is_marked(method: Any) -> bool:
    """Whether a method is marked with `on_main_process`."""
    return bool(getattr(method, _MARK, False))
