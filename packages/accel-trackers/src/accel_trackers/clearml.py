"""ClearML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accel_state.environment import variable
from accel_trackers.abilities import LogsArtifacts, LogsTables
from accel_trackers.images import by_place
from accel_trackers.service import ServiceTracker


class ClearMLTracker(ServiceTracker, LogsTables, LogsArtifacts):
    """Logs numbers, one-element tensors on any device, and dicts of these to the current ClearML task, or a new one.

    As ClearML does with TensorBoard's names, ``loss/train`` becomes the series ``train`` in the plot ``loss``. So does
    ``train_loss`` (also ``eval_`` and ``test_``). Any other name is used for both the plot and the series. Without a
    step, numbers are single values of the task. Several images of a name get the series ``0``, ``1``, ….

    The variables ``CLEARML_PROJECT`` and ``CLEARML_TASK`` override the names of a new task and its project. Keyword
    arguments are for ``Logger.report_scalar`` or ``report_single_value``, ``report_image``,
    ``report_matplotlib_figure``, ``report_table``, and ``Task.upload_artifact``, where ``artifact_path`` is the name of
    the artifact. Without ``columns``, the first row of a table has their names.

    Args:
        run_name: Name of the project.
        kwargs: Keyword arguments for ``Task.init``, such as ``task_name``, ``tags``, ``auto_connect_frameworks``.
    """

    name = "clearml"
    _is_ours = False

    def _open(self) -> Any:
        from clearml import Task

        running = Task.current_task()
        self._is_ours = running is None
        if running is not None:
            return running
        task_name = variable("CLEARML_TASK")
        kwargs = self._kwargs | ({"task_name": task_name} if task_name else {})
        return Task.init(project_name=variable("CLEARML_PROJECT") or self.run_name, **kwargs)

    def _close(self, run: Any) -> None:
        # A task that the script opened is also closed by it: it may log more there after the training.
        if self._is_ours:
            run.close()
        else:
            run.flush(wait_for_uploads=True)

    def _store_config(self, run: Any, values: dict[str, Any]) -> None:
        run.connect(values)

    def _log(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        logger = run.get_logger()
        for name, number in self._supported(values).items():
            if step is None:
                logger.report_single_value(name=name, value=number, **kwargs)
            else:
                logger.report_scalar(**_place(name), value=number, iteration=step, **kwargs)

    def _log_images(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        logger = run.get_logger()
        for name, image in by_place(values).items():
            logger.report_image(**_place(name), iteration=step, image=image, **kwargs)

    def _log_figures(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        logger = run.get_logger()
        for name, figure in values.items():
            logger.report_matplotlib_figure(**_place(name), figure=figure, iteration=step, **kwargs)

    def _log_table(
        self, run: Any, name: str, columns: list[str] | None, rows: Any, step: int | None, **kwargs: Any
    ) -> None:
        shown = rows if columns is None else [columns, *rows]
        run.get_logger().report_table(**_place(name), iteration=step, table_plot=shown, **kwargs)

    def _log_artifact(self, run: Any, local_path: str, artifact_path: str | None, **kwargs: Any) -> None:
        path = Path(local_path)
        run.upload_artifact(artifact_path or path.name, artifact_object=path, **kwargs)


def _place(name: str) -> dict[str, str]:
    title, _, series = name.partition("/")
    part, _, rest = name.partition("_")
    if not series and part in ("train", "eval", "test") and rest:
        return {"title": rest, "series": part}
    return {"title": title, "series": series or title}
