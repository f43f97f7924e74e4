"""The tracker classes by name, and selecting and starting those of ``log_with``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, overload

from accel_state.enums import LoggerType
from accel_state.errors import ConfigError, NotAvailableError, UnknownNameError
from accel_state.registry import Registry
from accel_state.user_warnings import warn_user
from accel_trackers.general_tracker import GeneralTracker, check_complete

Tracker = TypeVar("Tracker", bound=GeneralTracker)
TrackerChoice: TypeAlias = str | LoggerType | GeneralTracker
_NO_FOLDER = (
    "requires a `logging_dir`: it writes to a folder. "
    "Pass `logging_dir=...`, or `project_dir=...` to an `Accelerator`."
)

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


@overload
def filter_trackers(
    log_with: Tracker | Sequence[Tracker], logging_dir: str | os.PathLike[str] | None = None
) -> list[Tracker]: ...
@overload
def filter_trackers(
    log_with: TrackerChoice | Sequence[TrackerChoice] | None,
    logging_dir: str | os.PathLike[str] | None = None,
) -> list[str | GeneralTracker]: ...
def filter_trackers(
    log_with: TrackerChoice | Sequence[TrackerChoice] | None,
    logging_dir: str | os.PathLike[str] | None = None,
) -> Any:
    """Return the names and instances of the selected trackers, checked, without duplicates, in the order given.

        filter_trackers(["jsonl", "wandb"], logging_dir="runs")  # ["jsonl", "wandb"]

    Args:
        log_with: Names, `LoggerType` members, `GeneralTracker` instances, or "all" for every installed tracker.
            Without `logging_dir`, "all" skips trackers that need a folder, with a warning that names them.
        logging_dir: Folder for trackers that need one.

    Raises:
        UnknownNameError: If a name is unknown.
        NotAvailableError: If a tracker's package is not installed.
        ConfigError: If a tracker needs a folder and `logging_dir` is None, or an entry has another type.
    """
    chosen: dict[str | int, str | GeneralTracker] = {}
    is_one = not isinstance(log_with, list | tuple | set | frozenset | None)
    entries: Any = [log_with] if is_one else log_with or []
    for entry in entries:
        if isinstance(entry, GeneralTracker):
            check_complete(entry)
            chosen[id(entry)] = entry
        elif not isinstance(entry, str):
            raise ConfigError(
                f"`log_with` takes names and instances of `GeneralTracker`, got {entry!r}. "
                "For a class, pass an instance, or register it with `register_tracker_class` and pass its name."
            )
        elif entry == LoggerType.ALL:
            chosen.update((name, name) for name in _all_usable(logging_dir))
        else:
            chosen[str(entry)] = _checked(str(entry), logging_dir)
    return list(chosen.values())


def start_trackers(
    chosen: Sequence[str | GeneralTracker],
    run_name: str,
    *,
    logging_dir: str | os.PathLike[str] | None = None,
    config: Mapping[str, Any] | None = None,
    init_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[GeneralTracker]:
    """Create, start and configure the trackers that `filter_trackers` returned.

    Call it on every process: methods marked with `on_main_process` do nothing on other processes. It does not
    communicate, so no process waits for another.

        trackers = start_trackers(filter_trackers("jsonl", "runs"), "digits", logging_dir="runs", config={"lr": 0.1})

    Args:
        chosen: Names and instances.
        run_name: Name of the run, or of the project if the service groups runs by project.
        logging_dir: Folder for trackers that need one.
        config: Stored as the configuration of the run.
        init_kwargs: Keyword arguments for the constructor of each tracker, by its name.

    Raises:
        UnknownNameError: If ``init_kwargs`` names a tracker that is not in ``chosen``.
        ConfigError: If ``run_name`` is a path that leaves ``logging_dir``.
    """
    given = {str(name): dict(kwargs) for name, kwargs in (init_kwargs or {}).items()}
    names = [entry for entry in chosen if isinstance(entry, str)]
    for name in given:
        if name not in names:
            raise UnknownNameError.of("tracker in `init_kwargs`", name, names)
    trackers = [
        _make(entry, run_name, logging_dir, given.get(entry, {})) if isinstance(entry, str) else entry
        for entry in chosen
    ]
    for tracker in trackers:
        tracker.start()
        if config is not None:
            tracker.store_init_configuration(dict(config))
    return trackers


def _all_usable(logging_dir: str | os.PathLike[str] | None) -> list[str]:
    names = get_available_trackers()
    if logging_dir is not None:
        return names
    homeless = [name for name in names if TRACKERS.get(name).requires_logging_directory]
    if homeless:
        warn_user(
            f'`log_with="all"` skips {", ".join(homeless)}: {"each" if len(homeless) > 1 else "it"} '
            + _NO_FOLDER,
        )
    return [name for name in names if name not in homeless]


def _checked(name: str, logging_dir: str | os.PathLike[str] | None) -> str:
    cls = TRACKERS.get(name)
    reason = cls.why_not_available()
    if reason is not None:
        raise NotAvailableError(reason)
    if cls.requires_logging_directory and logging_dir is None:
        raise ConfigError(f"Logging with `{name}` {_NO_FOLDER}")
    return name


def _make(
    name: str, run_name: str, logging_dir: str | os.PathLike[str] | None, kwargs: Mapping[str, Any]
) -> GeneralTracker:
    cls: Any = TRACKERS.get(_checked(name, logging_dir))
    path = Path(run_name)
    if cls.requires_logging_directory and (path.is_absolute() or ".." in path.parts):
        raise ConfigError(
            f"The run name `{run_name}` points outside the folder `{logging_dir}`. Choose one without `..`, and "
            "set the folder with `logging_dir` (`project_dir` of an `Accelerator`)."
        )
    arguments = (run_name, logging_dir) if cls.requires_logging_directory else (run_name,)
    tracker: GeneralTracker = cls(*arguments, **kwargs)
    return tracker
