"""Weights & Biases."""

from __future__ import annotations

from typing import Any

from accel_trackers.images import pictures
from accel_trackers.main_process import on_main_process
from accel_trackers.service import ServiceTracker
from accel_trackers.values import as_plain_data, with_numbers


class WandBTracker(ServiceTracker):
    """Logs to a run of wandb, in the project ``run_name``.

    Args:
        run_name: The name of the project; wandb names the run, unless ``name`` is given.
        kwargs: Handed to ``wandb.init``, such as ``entity``, ``mode="offline"``, ``group``, ``tags``.
    """

    name = "wandb"

    def __init__(self, run_name: str, **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self._kwargs = kwargs

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Store ``values`` as the run's config; those of a resumed run may change."""
        self.tracker.config.update(as_plain_data(values), allow_val_change=True)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log ``values``: all that ``Run.log`` takes, and tensors of one element.

        Args:
            values: By name.
            step: wandb ignores steps that lie before the last one, and says so.
            kwargs: Handed to ``Run.log``.
        """
        self.tracker.log(with_numbers(values), step=step, **kwargs)

    @on_main_process
    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log images by name, one or many each (see `accel_trackers.images.pictures`).

        Args:
            values: By name.
            step: Where on the axis they belong.
            kwargs: Handed to ``Run.log``.
        """
        run = self.tracker
        import wandb

        shown = {name: [wandb.Image(each) for each in pictures(images)] for name, images in values.items()}
        run.log(shown, step=step, **kwargs)

    @on_main_process
    def log_table(
        self,
        table_name: str,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Log a table, from ``columns`` and ``data``, or from a ``dataframe`` of pandas.

        Args:
            table_name: Its name.
            columns: The names of the columns.
            data: The rows; cells may be images, audio and other media of wandb.
            dataframe: Instead of both.
            step: Where on the axis it belongs.
            kwargs: Handed to ``Run.log``.
        """
        run = self.tracker
        import wandb

        table = wandb.Table(columns=columns, data=data, dataframe=dataframe)
        run.log({table_name: table}, step=step, **kwargs)

    def _open(self) -> Any:
        import wandb

        return wandb.init(project=self.run_name, **self._kwargs)

    def _close(self, run: Any) -> None:
        run.finish()
