"""What every tracker is: a name, a few facts, and four methods."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from accel_trackers.errors import IncompleteTrackerError

_REQUIRED = {
    "name": "a class attribute, the name by which `log_with` and `get_tracker` know it",
    "requires_logging_directory": "a class attribute, whether it writes below `logging_dir`",
    "tracker": "a property that returns the run object of the library behind it",
}


class GeneralTracker:
    """Base of all trackers; the methods here do nothing.

    A tracker of your own sets ``name`` and ``requires_logging_directory``, has a property ``tracker``, and
    overrides what it needs of the methods. Mark them with `on_main_process` unless every process should log.

    Args:
        _blank: Make a stand-in that accepts every call and does nothing, as on processes that do not log.

    Raises:
        IncompleteTrackerError: If one of the three is missing.
    """

    name: str
    requires_logging_directory: bool
    main_process_only: bool = True
    # True where `log` may be called by a thread of its own: for libraries that write while their caller waits.
    log_in_background: ClassVar[bool] = False

    if TYPE_CHECKING:
        # Not there at run time, so that a class without it can be told.
        @property
        def tracker(self) -> Any:
            """The run object of the library behind this tracker."""

    def __init__(self, _blank: bool = False) -> None:
        if not _blank:
            check_complete(self)

    @classmethod
    def why_not_available(cls) -> str | None:
        """Return why this tracker cannot be used here and what to install, ``None`` if it can."""
        return None

    def start(self) -> None:
        """Start the run; called once, after all processes are up, before anything else."""

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Store the configuration of the run, once, at its start."""

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log ``values`` by name, for ``step`` where one is given."""

    def finish(self) -> None:
        """End the run; whatever was logged is written when this returns."""


def check_complete(
    tracker: GeneralTracker | type[GeneralTracker], names: Iterable[str] = tuple(_REQUIRED)
) -> None:
    """Refuse a tracker, or a class of trackers, that lacks one of ``names``, which are required."""
    missing = [name for name in names if name not in dir(tracker)]
    if missing:
        cls = tracker if isinstance(tracker, type) else type(tracker)
        needed = "; ".join(f"`{name}`, {_REQUIRED[name]}" for name in missing)
        raise IncompleteTrackerError(
            f"The tracker class `{cls.__name__}` lacks {needed}. Add what is missing."
        )
