"""SwanLab."""

from __future__ import annotations

from typing import Any

from accel_trackers.images import pictures
from accel_trackers.service import GroupedTracker
from accel_trackers.values import flat, is_handling_error, with_numbers


class SwanLabTracker(GroupedTracker):
    """Logs to a SwanLab run: values of any type that SwanLab accepts, one-element tensors, strings, and dicts of these.

    Keyword arguments of `log` are for ``Run.log``, those of `log_images` for ``swanlab.Image``, such as ``caption``.

    Args:
        run_name: Name of the project; SwanLab names the run, unless ``name`` is given.
        main_process_only: If False, each rank has a run; they share the ``group``, which is required then.
        kwargs: Keyword arguments for ``swanlab.init``, such as ``mode="offline"``, ``workspace``, ``log_dir``.
    """

    name = "swanlab"

    def _open(self) -> Any:
        import swanlab

        self._library = swanlab
        return swanlab.init(project=self.run_name, **self._kwargs)

    def _close(self, run: Any) -> None:
        run.finish(state="crashed" if is_handling_error() else "success")

    def _log(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        shown = {
            name: self._library.Text(value) if isinstance(value, str) else value
            for name, value in flat(with_numbers(values)).items()
        }
        run.log(shown, step=step, **kwargs)

    def _log_images(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        shown = {
            name: [self._library.Image(each, **kwargs) for each in pictures(images)]
            for name, images in values.items()
        }
        run.log(shown, step=step)
