"""Trackio: a local dashboard of Hugging Face, with the interface of wandb."""

from __future__ import annotations

from typing import Any

from accel_trackers.images import by_place
from accel_trackers.main_process import on_main_process
from accel_trackers.service import ServiceTracker
from accel_trackers.tables import table_rows
from accel_trackers.values import as_array, as_plain_data, flat, with_numbers


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

    @on_main_process
    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log images by name, one or many each (see `accel_trackers.images.pictures`).

        Args:
            values: By name; of many, each has its place as a name: ``name/0``, ``name/1``, ….
            step: Where on the axis they belong.
            kwargs: Handed to ``trackio.Image``, such as ``caption``.
        """
        run = self.tracker
        import trackio

        run.log({name: trackio.Image(image, **kwargs) for name, image in by_place(values).items()}, step=step)

    @on_main_process
    def log_figures(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log figures of matplotlib as images, by name, with further arguments for ``trackio.Image``."""
        self.log_images(values, step=step, **kwargs)

    @on_main_process
    def log_histograms(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log the distribution of the numbers in tensors, arrays or lists, by name.

        Args:
            values: By name.
            step: Where on the axis they belong.
            kwargs: Handed to ``trackio.Histogram``, such as ``num_bins``.
        """
        run = self.tracker
        import trackio

        shown = {name: trackio.Histogram(as_array(numbers), **kwargs) for name, numbers in values.items()}
        run.log(shown, step=step)

    @on_main_process
    def log_table(
        self,
        table_name: str,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
    ) -> None:
        """Log a table, from ``columns`` and ``data``, or from a ``dataframe`` of pandas; trackio needs pandas for both.

        Args:
            table_name: Its name.
            columns: The names of the columns.
            data: The rows.
            dataframe: Instead of both.
            step: Where on the axis it belongs.

        Raises:
            ConfigError: If there is neither ``data`` nor a ``dataframe``.
        """
        run = self.tracker
        import trackio

        rows = table_rows(data, dataframe)
        table = (
            trackio.Table(columns=columns, data=rows) if dataframe is None else trackio.Table(dataframe=rows)
        )
        run.log({table_name: table}, step=step)

    def _open(self) -> Any:
        import trackio

        return trackio.init(project=self.run_name, **self._kwargs)

    def _close(self, run: Any) -> None:
        run.finish()
