"""Trackio: Hugging Face's local dashboard, with the interface of wandb."""

from __future__ import annotations

from typing import Any

from accel_trackers.images import by_place
from accel_trackers.main_process import on_main_process
from accel_trackers.service import ServiceTracker
from accel_trackers.tables import table_rows
from accel_trackers.values import as_array, as_plain_data, flat, with_numbers


class TrackioTracker(ServiceTracker):
    """Logs to a trackio run, in the project ``run_name``; ``trackio show`` displays it.

    Args:
        run_name: Name of the project; trackio names the run, unless ``name`` is given.
        kwargs: Keyword arguments for ``trackio.init``, such as ``space_id``, ``group``, ``resume``.
    """

    name = "trackio"

    def __init__(self, run_name: str, **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self._kwargs = kwargs

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Store ``values`` as the run's config, which trackio writes with the first logged values."""
        self.tracker.config.update(as_plain_data(values))

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log values of any type that trackio accepts, one-element tensors on any device, and dicts of these.

        Args:
            values: Values by name.
            step: Step of the values.
            kwargs: Keyword arguments for ``trackio.Run.log``.
        """
        # Not `trackio.log`, which only finds the run in the thread that called `trackio.init`.
        self.tracker.log(flat(with_numbers(values)), step=step, **kwargs)

    def _log_images(self, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        """``kwargs`` are for ``trackio.Image``, such as ``caption``."""
        run = self.tracker
        import trackio

        run.log({name: trackio.Image(image, **kwargs) for name, image in by_place(values).items()}, step=step)

    @on_main_process
    def log_histograms(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log the distribution of the elements of tensors of any shape and device, arrays or lists, by name.

        Args:
            values: Values by name.
            step: Step of the values.
            kwargs: Keyword arguments for ``trackio.Histogram``, such as ``num_bins``.
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
        """Log a table, from ``columns`` and ``data``, or from a pandas ``dataframe``; trackio needs pandas for both.

        Args:
            table_name: Name of the table.
            columns: Column names.
            data: Rows.
            dataframe: A pandas data frame, in place of both.
            step: Step of the table.

        Raises:
            ConfigError: If neither ``data`` nor ``dataframe`` is given.
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
