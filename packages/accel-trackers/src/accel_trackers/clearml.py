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
    """Logs to a task of ClearML, in the project ``run_name``; to the one that runs already, if there is one.

    A name such as ``loss/train`` is the line ``train`` in the plot ``loss``, as ClearML takes TensorBoard's
    names, and so is ``train_loss`` (also ``eval_`` and ``test_``); of any other name, plot and line have the same.

    Args:
        run_name: The name of the project.
        kwargs: Handed to ``Task.init``, such as ``task_name``, ``tags``, ``auto_connect_frameworks``.
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
        """Log numbers (tensors of one element are numbers), and dicts of numbers.

        What is none of these is left out, with one warning per name.

        Args:
            values: By name; dicts are logged as ``name/inner``.
            step: Where on the axis they belong; without one they are single values of the task.
            kwargs: Handed to ``Logger.report_scalar`` or ``Logger.report_single_value``.
        """
        logger = self.tracker.get_logger()
        for name, number in self._numbers(flat(values)).items():
            if step is None:
                logger.report_single_value(name=name, value=number, **kwargs)
            else:
                title, series = _title_and_series(name)
                logger.report_scalar(title=title, series=series, value=number, iteration=step, **kwargs)

    @on_main_process
    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log images by name, one or many each (see `accel_trackers.images.pictures`).

        Args:
            values: By name; of many, each has its place as a name: ``0``, ``1``, ….
            step: Where on the axis they belong.
            kwargs: Handed to ``Logger.report_image``.
        """
        logger = self.tracker.get_logger()
        for name, images in values.items():
            title, series = _title_and_series(name)
            shown = pictures(images)
            for place, image in enumerate(shown):
                line = series if len(shown) == 1 else f"{series}/{place}"
                logger.report_image(title=title, series=line, iteration=step, image=image, **kwargs)

    @on_main_process
    def log_figures(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log figures of matplotlib, by name, with further arguments for ``Logger.report_matplotlib_figure``."""
        logger = self.tracker.get_logger()
        for name, figure in values.items():
            title, series = _title_and_series(name)
            logger.report_matplotlib_figure(
                title=title, series=series, figure=figure, iteration=step, **kwargs
            )

    @on_main_process
    def log_artifact(self, local_path: str, artifact_path: str | None = None, **kwargs: Any) -> None:
        """Upload a file or folder as an artifact called ``artifact_path``, or as the file is.

        Args:
            local_path: The file or folder.
            artifact_path: The name of the artifact.
            kwargs: Handed to ``Task.upload_artifact``, such as ``metadata``.
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
        """Log a table, from ``columns`` and ``data``, or from a ``dataframe`` of pandas.

        Args:
            table_name: Its name.
            columns: The names of the columns; without them the first row is taken for them.
            data: The rows.
            dataframe: Instead of both.
            step: Where on the axis it belongs.
            kwargs: Handed to ``Logger.report_table``.

        Raises:
            ConfigError: If there is neither ``data`` nor a ``dataframe``.
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
