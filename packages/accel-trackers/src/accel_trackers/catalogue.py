"""All tracker classes by name: built-in, from other packages, or registered at run time."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

from accel_state.errors import ConfigError
from accel_state.registry import Registry
from accel_state.user_warnings import warn_user
from accel_trackers.general_tracker import GeneralTracker, check_complete

TRACKERS: Registry[type[GeneralTracker]] = Registry("tracker", "accel.trackers")


class _TrackerClasses(MutableMapping[str, type[GeneralTracker]]):
    """The registry as a mutable mapping; a class is imported when it is looked up."""

    def __getitem__(self, name: str) -> type[GeneralTracker]:
        return TRACKERS.get(str(name))

    def __setitem__(self, name: str, tracker_class: type[GeneralTracker]) -> None:
        TRACKERS.register(str(name), tracker_class, replace=True)

    def __delitem__(self, name: str) -> None:
        TRACKERS.unregister(str(name))

    def __iter__(self) -> Iterator[str]:
        return iter(TRACKERS.names())

    def __len__(self) -> int:
        return len(TRACKERS.names())

    def __repr__(self) -> str:
        return f"LOGGER_TYPE_TO_CLASS({', '.join(self)})"


LOGGER_TYPE_TO_CLASS = _TrackerClasses()


def register_tracker_class(tracker_class: type[GeneralTracker]) -> type[GeneralTracker]:
    """Register a class under its ``name``, for ``log_with`` and for "all". Usable as a decorator.

    Packages register classes with an entry point in the group ``accel.trackers`` instead. Replacing another class of
    the same name is a warning.

    Raises:
        ConfigError: If it is not a subclass of `GeneralTracker`.
        IncompleteTrackerError: If it lacks a required attribute.
    """
    given: object = tracker_class
    if not (isinstance(given, type) and issubclass(given, GeneralTracker)):
        raise ConfigError(f"`{tracker_class!r}` is not a subclass of `GeneralTracker`. Derive it from that.")
    check_complete(tracker_class, ("name", "requires_logging_directory"))  # `tracker` when it is constructed
    name = tracker_class.name
    if name in TRACKERS and TRACKERS.get(name) is not tracker_class:
        warn_user(
            f"`{tracker_class.__name__}` replaces the tracker `{name}`. If that was not meant, rename the class."
        )
    TRACKERS.register(name, tracker_class, replace=True)
    return tracker_class


def get_available_trackers() -> list[str]:
    """Return the sorted names of the trackers whose packages are installed; they equal `LoggerType` members."""
    return [name for name, cls in TRACKERS.items() if cls.why_not_available() is None]
