"""The experiment trackers of a run; accel-trackers does the work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import accel_trackers
from accel_state import PartialState
from accel_state.errors import ConfigError
from accel_state.user_warnings import warn_user

if TYPE_CHECKING:  # a run without trackers does without their modules
    from accel_trackers import BackgroundLog, GeneralTracker, OnError


class Trackers:
    """The chosen and the started trackers of a run, and the queue through which `log` calls them.

    Args:
        log_with: The user's choice.
        logging_dir: Folder of the local trackers.

    Raises:
        ConfigError: If a tracker is unknown, or needs a folder and there is none.
    """

    def __init__(self, log_with: Any, *, logging_dir: str | None) -> None:
        self._logging_dir = logging_dir
        self._started: list[GeneralTracker] = []
        self._background: BackgroundLog | None = None
        self._has_warned = False
        self.choose(log_with)

    def choose(self, log_with: Any) -> None:
        """Choose the trackers for the next `start`."""
        self.chosen: list[str | GeneralTracker] = (
            [] if log_with is None else accel_trackers.filter_trackers(log_with, self._logging_dir)
        )

    def start(
        self,
        project_name: str,
        config: Mapping[str, Any] | None,
        init_kwargs: Mapping[str, Mapping[str, Any]] | None,
        on_error: OnError,
    ) -> None:
        """Start all chosen trackers; see `Accelerator.init_trackers`. Every rank must call it.

        Raises:
            ConfigError: If trackers were already started, or `on_error` is invalid.
        """
        if self._background is not None:
            raise ConfigError("Trackers were started already. Call `end_training` before starting new ones.")
        accel_trackers.check_on_error(on_error)
        self._started = accel_trackers.start_trackers(
            self.chosen, project_name, logging_dir=self._logging_dir, config=config, init_kwargs=init_kwargs
        )
        self._background = accel_trackers.BackgroundLog(self._started, on_error=on_error)

    def replace(self, trackers: Sequence[GeneralTracker]) -> None:
        """Log to other trackers that were started, from now on."""
        if self._background is not None:
            self._background.close()
        self._started, self._background = list(trackers), accel_trackers.BackgroundLog(trackers)

    def take_all(self) -> list[GeneralTracker]:
        """Return all started trackers for direct use; `log` calls them directly from then on."""
        if self._background is not None:
            self._background.call_directly(self._started)
        return self._started

    def take(self, name: str, *, unwrap: bool) -> Any:
        """Return one started tracker for direct use; see `Accelerator.get_tracker`.

        Raises:
            ConfigError: If no such tracker was started.
        """
        tracker = next((started for started in self._started if started.name == name), None)
        if tracker is None:
            known = ", ".join(started.name for started in self._started) or "none"
            raise ConfigError(f"No tracker `{name}` was started. Started: {known}. Name it in `log_with`.")
        if self._background is not None:
            self._background.call_directly([tracker])
        if not unwrap:
            return tracker
        is_silent = tracker.main_process_only and not PartialState().is_main_process
        return accel_trackers.NoRun() if is_silent else tracker.tracker

    def log(
        self,
        values: Mapping[str, Any],
        step: int | None,
        log_kwargs: Mapping[str, Mapping[str, Any]] | None,
    ) -> None:
        """Log `values` to every started tracker; see `BackgroundLog.log`."""
        if self._background is not None:
            self._background.log(values, step=step, log_kwargs=log_kwargs)
        elif self.chosen and not self._has_warned:
            self._has_warned = True
            warn_user("`log` has no effect: no tracker of `log_with` is running. Call `init_trackers` first.")

    def finish(self) -> None:
        """Write out the logged values and close all trackers, also if one fails.

        Raises:
            TrackerError: If a tracker failed to log something.
        """
        background, started = self._background, self._started
        self._background, self._started = None, []
        write_out = [] if background is None else [background.close]
        attempt_all([*write_out, *(tracker.finish for tracker in reversed(started))])


def attempt_all(steps: Iterable[Callable[[], object]]) -> None:
    """Call every step in order, also after one has failed.

    Raises:
        BaseException: The first error; later ones are its notes.
    """
    first: BaseException | None = None
    for step in steps:
        try:
            step()
        except BaseException as error:  # noqa: BLE001 (raised when all steps were called)
            if first is None:
                first = error
            else:
                first.add_note(f"Afterwards: {type(error).__name__}: {error}")
    if first is not None:
        raise first
