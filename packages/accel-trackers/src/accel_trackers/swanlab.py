"""SwanLab."""

from __future__ import annotations

from typing import Any

from accel_trackers.ending import is_handling_error
from accel_trackers.images import pictures
from accel_trackers.main_process import on_main_process
from accel_trackers.service import ServiceTracker
from accel_trackers.values import as_plain_data, flat, with_numbers


class SwanLabTracker(ServiceTracker):
    """Logs to a SwanLab run, in the project ``run_name``.

    Args:
        run_name: Name of the project; SwanLab names the run, unless ``name`` is given.
        kwargs: Keyword arguments for ``swanlab.init``, such as ``mode="offline"``, ``workspace``, ``log_dir``.
    """

    name = "swanlab"

    def __init__(self, run_name: str, **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self._kwargs = kwargs

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Store ``values`` as the run's config."""
        self.tracker.config.update(as_plain_data(values))

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log values of any type that SwanLab accepts, one-element tensors on any device, strings, and dicts of these.

        Args:
            values: Values by name; dicts are logged as ``name/inner``.
            step: Step of the values.
            kwargs: Keyword arguments for ``Run.log``.
        """
        run = self.tracker
        import swanlab

        shown = {
            name: swanlab.Text(value) if isinstance(value, str) else value
            for name, value in flat(with_numbers(values)).items()
        }
        run.log(shown, step=step, **kwargs)

    def _log_images(self, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        """Images of a name are shown together; ``kwargs`` are for ``swanlab.Image``, such as ``caption``."""
        run = self.tracker
        import swanlab

        shown = {
            name: [swanlab.Image(each, **kwargs) for each in pictures(images)]
            for name, images in values.items()
        }
        run.log(shown, step=step)

    def _open(self) -> Any:
        import swanlab

        return swanlab.init(project=self.run_name, **self._kwargs)

    def _close(self, run: Any) -> None:
        run.finish(state="crashed" if is_handling_error() else "success")
