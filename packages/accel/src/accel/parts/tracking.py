"""Where metrics go; accel-trackers does the work."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import accel_trackers
from accel.configuration import RunConfiguration
from accel_state import PartialState
from accel_state.errors import ConfigError

if TYPE_CHECKING:  # a run without trackers does without their modules
    from accel_trackers import BackgroundLog, GeneralTracker


class Tracking:
    """Experiment trackers of this run."""

    configuration: RunConfiguration
    processes: PartialState
    log_with: list[str | GeneralTracker]
    _trackers: list[GeneralTracker]
    _background: BackgroundLog | None

    @property
    def project_dir(self) -> str | None:
        """Folder for everything the project writes."""
        return self.configuration.project.project_dir

    @property
    def logging_dir(self) -> str | None:
        """Folder of the local trackers."""
        return self.configuration.project.logging_dir

    @property
    def trackers(self) -> list[GeneralTracker]:
        """The trackers that were started. `log` waits for them from then on, so that all their calls keep one order."""
        if self._background is not None:
            self._background.call_directly(self._trackers)
        return self._trackers

    def init_trackers(
        self,
        project_name: str,
        config: Mapping[str, Any] | None = None,
        init_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Start a run named `project_name` in every tracker of `log_with`. Every rank must call it.

        Args:
            project_name: Name of the project (or run, where a tracker has no projects).
            config: Settings of the run, stored once.
            init_kwargs: By a tracker's name, keywords for its constructor.

        Raises:
            ConfigError: If trackers were already started.
        """
        if self._background is not None:
            raise ConfigError("Trackers were started already. Call `end_training` before starting new ones.")
        self._trackers = accel_trackers.start_trackers(
            self.log_with, project_name, logging_dir=self.logging_dir, config=config, init_kwargs=init_kwargs
        )
        self._background = accel_trackers.BackgroundLog(self._trackers)

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """Return the tracker called `name`, or its own run object with `unwrap`.

        `log` waits for this tracker from then on, so that all its calls keep one order. On ranks that do not log, its
        methods do nothing; in place of its run object there is one that accepts every call.

        Raises:
            ConfigError: If no such tracker was started.
        """
        for tracker in self._trackers:
            if tracker.name == name:
                if self._background is not None:
                    self._background.call_directly([tracker])
                if unwrap and tracker.main_process_only and not self.processes.is_main_process:
                    return accel_trackers.NoRun()
                return tracker.tracker if unwrap else tracker
        known = ", ".join(tracker.name for tracker in self._trackers) or "none"
        raise ConfigError(f"No tracker `{name}` was started. Started: {known}. Name it in `log_with`.")

    def log(
        self,
        values: Mapping[str, Any],
        step: int | None = None,
        log_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Hand `values` to every tracker, without waiting for them.

        Args:
            values: Numbers, strings, tensors of one element, or dicts of these, by name.
            step: Step of training they belong to.
            log_kwargs: By a tracker's name, keywords for its `log`.
        """
        if self._background is not None:
            self._background.log(values, step=step, log_kwargs=log_kwargs)

    def end_training(self) -> None:
        """Write out and close all trackers, then end the process group. Every rank must call it.

        Raises:
            TrackerError: If a tracker failed to log something; all are closed and the group is ended first.
        """
        with ExitStack() as ending:
            ending.callback(self.processes.destroy_process_group)
            for tracker in self._trackers:
                ending.callback(tracker.finish)
            if self._background is not None:
                ending.callback(self._background.close)
            self._background, self._trackers = None, []
