"""ClearML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accel_trackers.images import pictures
from accel_trackers.main_process import on_main_process
from accel_trackers.service import ServiceTracker
from accel_trackers.tables import table_rows
from accel_trackers.values import as_plain_data, flat


class ClearMLTracker(ServiceTracker):
    """Logs to the current ClearML task, or else to a new one in the project ``run_name``.

    As ClearML does with TensorBoard's names, ``loss/train`` becomes the series ``train`` in the plot ``loss``. So does
    ``train_loss`` (also ``eval_`` and ``test_``). Any other name is used for both the plot and the series.

    Args:
        run_name: Name of the project.
        kwargs: Keyword arguments for ``Task.init``, such as ``task_name``, ``tags``, ``auto_connect_frameworks``.
    """

    name = "clearml"

    def __init__(self, run_name: str | None = None, **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self._kwargs = kwargs
        self._is_ours = False

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Store ``values`` as the task's hyperparameters."""
        self.tracker.connect(as_plain_data(values))

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log numbers, one-element tensors on any device, and dicts of these.

        Other values are skipped, with one warning per name.

        Args:
            values: Values by name; dicts are logged as ``name/inner``.
            step: Step of the values; without it they are logged as single values of the task.
            kwargs: Keyword arguments for ``Logger.report_scalar`` or ``Logger.report_single_value``.
        """
        logger = self.tracker.get_logger()
        for name, number in self._numbers(flat(values)).items():
            if step is None:
                logger.report_single_value(name=name, value=number, **kwargs)
            else:
                title, series = _title_and_series(name)
                logger.report_scalar(title=title, series=series, value=number, iteration=step, **kwargs)

    def _log_images(self, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        """Several images of a name get the series ``0``, ``1``, …; ``kwargs`` are for ``Logger.report_image``."""
        logger = self.tracker.get_logger()
        for name, images in values.items():
            title, series = _title_and_series(name)
            shown = pictures(images)
            for place, image in enumerate(shown):
                line = series if len(shown) == 1 else f"{series}/{place}"
                logger.report_image(title=title, series=line, iteration=step, image=image, **kwargs)

    @on_main_process
    def log_figures(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log matplotlib figures by name, with keyword arguments for ``Logger.report_matplotlib_figure``."""
        logger = self.tracker.get_logger()
        for name, figure in values.items():
            title, series = _title_and_series(name)
            logger.report_matplotlib_figure(
                title=title, series=series, figure=figure, iteration=step, **kwargs
            )

    @on_main_process
    def log_artifact(self, local_path: str, artifact_path: str | None = None, **kwargs: Any) -> None:
        """Upload a file or folder as an artifact.

        Args:
            local_path: File or folder.
            artifact_path: Name of the artifact. Default: the name of the file or folder.
            kwargs: Keyword arguments for ``Task.upload_artifact``, such as ``metadata``.
        """
        path = Path(local_path)
        self.tracker.upload_artifact(artifact_path or path.name, artifact_object=path, **kwargs)

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
        """Log a table, from ``columns`` and ``data``, or from a pandas ``dataframe``.

        Args:
            table_name: Name of the table.
            columns: Column names. Default: the first row of ``data``.
            data: Rows.
            dataframe: A pandas data frame, in place of both.
            step: Step of the table.
            kwargs: Keyword arguments for ``Logger.report_table``.

        Raises:
            ConfigError: If neither ``data`` nor ``dataframe`` is given.
        """
        table = table_rows(data, dataframe)
        if dataframe is None and columns is not None:
            table = [columns, *table]
        title, series = _title_and_series(table_name)
        self.tracker.get_logger().report_table(
            title=title, series=series, iteration=step, table_plot=table, **kwargs
        )

    def _open(self) -> Any:
        from clearml import Task

        running = Task.current_task()
        self._is_ours = running is None
        return Task.init(project_name=self.run_name, **self._kwargs) if running is None else running

    def _close(self, run: Any) -> None:
        # A task that the script opened is also closed by it: it may log more there after the training.
        if self._is_ours:
            run.close()
        else:
            run.flush(wait_for_uploads=True)


def _title_and_series(name: str) -> tuple[str, str]:
    title, _, series = name.partition("/")
    part, _, rest = name.partition("_")
    if not series and part in ("train", "eval", "test") and rest:
        return rest, part
    return title, series or title
