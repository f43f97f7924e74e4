"""MLflow."""

from __future__ import annotations

import atexit
import json
import os
import time
from typing import Any

from accel_state.environment import parse_flag_from_env, variable
from accel_state.errors import ConfigError
from accel_trackers.ending import has_ended_by_error, is_handling_error
from accel_trackers.images import by_place
from accel_trackers.main_process import on_main_process
from accel_trackers.service import ServiceTracker
from accel_trackers.tables import file_name, table_rows
from accel_trackers.values import as_plain_data, flat

_PARAMS_PER_CALL = 100
_METRICS_PER_CALL = 1000


class MLflowTracker(ServiceTracker):
    """Logs to a run of MLflow, at the tracking URI that MLflow is set to.

    The variables ``MLFLOW_EXPERIMENT_NAME``, ``MLFLOW_RUN_ID``, ``MLFLOW_TAGS`` and ``MLFLOW_NESTED_RUN`` win over the
    arguments. A run that an exception ends is marked as failed.

    Args:
        experiment_name: The experiment of the run; made if there is none of this name. MLflow's own choice if
            not given.
        logging_dir: Where the artifacts of a new experiment are stored; MLflow's own choice if not given.
        run_id: A run to continue.
        tags: Tags of the run, by name, or the same as text in JSON.
        nested_run: Make it a child of the run that is active.
        run_name: The name of a new run.
        description: Its description.
    """

    name = "mlflow"
    log_in_background = True

    def __init__(
        self,
        experiment_name: str | None = None,
        logging_dir: str | os.PathLike[str] | None = None,
        run_id: str | None = None,
        tags: dict[str, Any] | str | None = None,
        nested_run: bool | None = False,
        run_name: str | None = None,
        description: str | None = None,
    ) -> None:
        super().__init__()
        self.experiment_name = variable("MLFLOW_EXPERIMENT_NAME") or experiment_name
        self.logging_dir = logging_dir
        self.run_id = variable("MLFLOW_RUN_ID") or run_id
        self.tags = _tags(variable("MLFLOW_TAGS") or tags)
        self.nested_run = parse_flag_from_env("MLFLOW_NESTED_RUN", bool(nested_run))
        self.run_name = run_name
        self.description = description
        # Its methods name the run, where MLflow's functions look for one that was started in the same thread.
        self._client: Any = None

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Store ``values`` as parameters; dicts as ``name/inner``. MLflow cuts texts that are too long for it."""
        run = self.tracker
        from mlflow.entities import Param

        params = [Param(name, str(value)) for name, value in flat(as_plain_data(values)).items()]
        for first in range(0, len(params), _PARAMS_PER_CALL):
            self._client.log_batch(run.info.run_id, params=params[first : first + _PARAMS_PER_CALL])

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log numbers (tensors of one element are numbers), and dicts of numbers.

        What is none of these is left out, with one warning per name.

        Args:
            values: By name; dicts are logged as ``name/inner``.
            step: Where on the axis they belong; MLflow takes 0 if not given.
            kwargs: Handed to ``MlflowClient.log_batch``, such as ``synchronous=False``.
        """
        run = self.tracker
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        metrics = [
            Metric(name, number, now_ms, step or 0) for name, number in self._numbers(flat(values)).items()
        ]
        for first in range(0, len(metrics), _METRICS_PER_CALL):
            batch = metrics[first : first + _METRICS_PER_CALL]
            self._client.log_batch(run.info.run_id, metrics=batch, **kwargs)

    @on_main_process
    def log_figure(self, figure: Any, artifact_file: str, **save_kwargs: Any) -> None:
        """Log a figure of matplotlib or plotly as the artifact ``artifact_file``.

        Args:
            figure: The figure.
            artifact_file: Its path below the run's artifacts; the suffix says the format.
            save_kwargs: Handed to the figure's method that saves it.
        """
        run_id = self.tracker.info.run_id
        self._client.log_figure(run_id, figure, artifact_file, save_kwargs=save_kwargs or None)

    @on_main_process
    def log_figures(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log figures of matplotlib as images, by name.

        Args:
            values: By name.
            step: Where on the axis they belong.
            kwargs: Handed to ``MlflowClient.log_image``.
        """
        self.log_images(values, step=step, **kwargs)

    @on_main_process
    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log images by name, one or many each (see `accel_trackers.images.pictures`).

        Args:
            values: By name; of many, each has its place as a name: ``name/0``, ``name/1``, ….
            step: Where on the axis they belong; MLflow takes 0 if not given.
            kwargs: Handed to ``MlflowClient.log_image``.
        """
        run_id = self.tracker.info.run_id
        for name, image in by_place(values).items():
            self._client.log_image(run_id, image, key=name, step=step or 0, **kwargs)

    @on_main_process
    def log_table(
        self,
        table_name: str,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
    ) -> None:
        """Log a table as an artifact in JSON, from ``columns`` and ``data``, or from a ``dataframe`` of pandas.

        MLflow adds the rows to those of an artifact of the same name; it needs pandas for that.

        Args:
            table_name: Its name; ``.json`` is added where it has no suffix.
            columns: The names of the columns; ``0``, ``1``, … if not given.
            data: The rows.
            dataframe: Instead of both.
            step: Where on the axis it belongs; part of the artifact's name, for MLflow's tables have no step.

        Raises:
            ConfigError: If there is neither ``data`` nor a ``dataframe``.
        """
        table = table_rows(data, dataframe)
        if dataframe is None:
            names = columns or [str(place) for place in range(len(table[0]) if table else 0)]
            table = {name: [row[place] for row in table] for place, name in enumerate(names)}
        file = file_name(table_name, step=step, suffix=".json")
        run_id = self.tracker.info.run_id  # the first use opens the run, and makes the client
        self._client.log_table(run_id, table, file)

    @on_main_process
    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> None:
        """Log all files in ``local_dir`` as artifacts, below ``artifact_path`` if given."""
        run_id = self.tracker.info.run_id
        self._client.log_artifacts(run_id, local_dir, artifact_path)

    @on_main_process
    def log_artifact(self, local_path: str, artifact_path: str | None = None) -> None:
        """Log the file ``local_path`` as an artifact, below ``artifact_path`` if given."""
        run_id = self.tracker.info.run_id
        self._client.log_artifact(run_id, local_path, artifact_path)

    def _open(self) -> Any:
        import mlflow

        # MLflow itself ends the run at exit as if all had gone well; what is registered later is called first.
        atexit.register(self._end_at_exit)
        self._client = mlflow.MlflowClient()
        return mlflow.start_run(
            run_id=self.run_id,
            experiment_id=None if self.experiment_name is None else self._experiment_id(self.experiment_name),
            run_name=self.run_name,
            nested=self.nested_run,
            tags=self.tags,
            description=self.description,
        )

    def _close(self, run: Any) -> None:
        atexit.unregister(self._end_at_exit)
        _end_run(is_failed=is_handling_error())

    def _end_at_exit(self) -> None:
        _end_run(is_failed=has_ended_by_error())

    def _experiment_id(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        location = None if self.logging_dir is None else os.fspath(self.logging_dir)
        return str(self._client.create_experiment(name, artifact_location=location))


def _end_run(*, is_failed: bool) -> None:
    import mlflow

    mlflow.end_run("FAILED" if is_failed else "FINISHED")


def _tags(tags: dict[str, Any] | str | None) -> dict[str, Any] | None:
    if not isinstance(tags, str):
        return tags
    try:
        read = json.loads(tags)
    except json.JSONDecodeError as error:
        raise ConfigError(f"`tags` is text, but no JSON: {error}. Pass a dict, or its JSON.") from error
    if not isinstance(read, dict):
        raise ConfigError(f"`tags` must be a dict, or one as JSON, got {tags}.")
    return read
