"""Comet."""

from __future__ import annotations

from typing import Any

from accel_trackers.main_process import on_main_process
from accel_trackers.service import ServiceTracker
from accel_trackers.values import as_number, as_plain_data, flat


class CometMLTracker(ServiceTracker):
    """Logs to an experiment of Comet, in the project ``run_name``.

    Args:
        run_name: The name of the project.
        kwargs: Handed to ``comet_ml.start``, such as ``workspace``, ``online=False``, ``experiment_config``.
    """

    name = "comet_ml"

    def __init__(self, run_name: str, **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self._kwargs = kwargs

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Store ``values`` as parameters; dicts as ``name|inner``, as Comet does."""
        self.tracker.log_parameters(as_plain_data(values))

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log numbers (tensors of one element are numbers) as metrics, strings as "other", and dicts of these.

        What is none of these is left out, with one warning per name.

        Args:
            values: By name; dicts are logged as ``name/inner``.
            step: Where on the axis they belong.
            kwargs: Handed to ``log_metric``, such as ``epoch``.
        """
        experiment = self.tracker
        if step is not None:
            experiment.set_step(step)
        for name, value in flat(values).items():
            number = as_number(value)
            if number is not None:
                experiment.log_metric(name, number, step=step, **kwargs)
            elif isinstance(value, str):
                experiment.log_other(name, value)
            else:
                self._warn_once(name, value, "numbers, strings and dicts of these")

    def _open(self) -> Any:
        import comet_ml

        return comet_ml.start(project_name=self.run_name, **self._kwargs)

    def _close(self, run: Any) -> None:
        run.end()
