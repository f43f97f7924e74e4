"""The base class of trackers for services: one run object, opened once and closed once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accel_state.errors import StateError
from accel_state.user_warnings import warn_user
from accel_trackers.general_tracker import GeneralTracker
from accel_trackers.main_process import on_main_process, runs_here
from accel_trackers.values import as_number


class ServiceTracker(GeneralTracker):
    """Base of trackers whose library has a run object; subclasses implement `_open` and `_close`.

    The library is imported when the run is opened, on the main process only. ``name`` is also its name in
    accel-state's table of packages, which determines whether it is installed. Libraries with a queue and thread of
    their own are called directly, the default; see `GeneralTracker.log_in_background`.
    """

    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self._run: Any = None
        self._is_finished = False
        self._warned_of: set[str] = set()

    @classmethod
    def why_not_available(cls) -> str | None:
        """Return why the library is unavailable and what to install, ``None`` if it is available."""
        from accel_state.availability import why_not

        return why_not(cls.name)

    @property
    def tracker(self) -> Any:
        """The run object of the library.

        Raises:
            StateError: On other processes than the main one, and after `finish`.
        """
        if not runs_here(self):
            raise StateError(
                f"The tracker `{self.name}` has a run on the main process only. "
                "Use it under `if PartialState().is_main_process`."
            )
        if self._is_finished:
            raise StateError(
                f"The run of the tracker `{self.name}` is finished. Start a new one to log more."
            )
        if self._run is None:
            self._run = self._open()
        return self._run

    @on_main_process
    def start(self) -> None:
        """Open the run, if it is not open yet."""
        _ = self.tracker

    @on_main_process
    def finish(self) -> None:
        """End the run. All logged values are written when this returns."""
        if self._run is not None and not self._is_finished:
            self._close(self._run)
        self._is_finished = True

    @on_main_process
    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log one image or several under each name (see `accel_trackers.images.pictures`).

        Args:
            values: Images by name; several under one name are shown together, or logged as ``name/0``, ``name/1``, ….
            step: Step of the images.
            kwargs: Keyword arguments for the library; the class's `_log_images` names its function.
        """
        self._log_images(values, step, **kwargs)

    @on_main_process
    def log_figures(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log matplotlib figures by name, as images unless the service has figures; arguments as for `log_images`."""
        self.log_images(values, step=step, **kwargs)

    def _log_images(self, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        raise NotImplementedError

    def _open(self) -> Any:
        raise NotImplementedError

    def _close(self, run: Any) -> None:
        raise NotImplementedError

    def _numbers(self, values: Mapping[str, Any]) -> dict[str, int | float]:
        """Return the numeric ``values``, with one-element tensors as numbers; warn about each other name once."""
        numbers = {name: as_number(value) for name, value in values.items()}
        for name, number in numbers.items():
            if number is None:
                self._warn_once(name, values[name], "numbers and dicts of numbers")
        return {name: number for name, number in numbers.items() if number is not None}

    def _warn_once(self, name: str, value: Any, shown: str) -> None:
        if name not in self._warned_of:
            self._warned_of.add(name)
            warn_user(
                f"The tracker `{self.name}` skips `{name}`: its `log` accepts {shown}, not "
                f"{type(value).__name__}. Use its other methods, or its `tracker`, for other types.",
                main_process_only=False,
            )
