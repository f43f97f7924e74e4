"""Trackio: a local dashboard of Hugging Face, with the interface of wandb."""

from __future__ import annotations

from typing import Any

from accel_trackers.main_process import on_main_process
from accel_trackers.service import ServiceTracker
from accel_trackers.values import as_plain_data, flat, with_numbers


class TrackioTracker(ServiceTracker):
    """Logs to a run of trackio, in the project ``run_name``; ``trackio show`` draws it.

    Args:
        run_name: The name of the project; trackio names the run, unless ``name`` is given.
        kwargs: Handed to ``trackio.init``, such as ``space_id``, ``group``, ``resume``.
    """

    name = "trackio"

    def __init__(self, run_name: str, **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self._kwargs = kwargs

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Store ``values`` as the run's config; it is written with the first values that are logged."""
        self.tracker.config.update(as_plain_data(values))

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log ``values``: all that trackio takes, tensors of one element, and dicts of these.

        Args:
            values: By name.
            step: Where on the axis they belong.
            kwargs: Handed to ``trackio.Run.log``.
        """
        # The run's own method: `trackio.log` finds its run in the thread that called `trackio.init` only.
        self.tracker.log(flat(with_numbers(values)), step=step, **kwargs)

    def _open(self) -> Any:
        import trackio

        return trackio.init(project=self.run_name, **self._kwargs)

    def _close(self, run: Any) -> None:
        run.finish()
