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
    """Logs to an MLflow run, at MLflow's tracking URI.

    The variables ``MLFLOW_EXPERIMENT_NAME``, ``MLFLOW_RUN_ID``, ``MLFLOW_TAGS`` and ``MLFLOW_NESTED_RUN`` override the
    arguments. A run that ends with an exception is marked as failed.

    Args:
        experiment_name: Experiment of the run; created if missing. Default: MLflow's default experiment.
        logging_dir: Folder for the artifacts of a new experiment. Default: MLflow's default location.
        run_id: Id of a run to resume.
        tags: Tags of the run, by name, as a dict or as JSON.
        nested_run: Make it a child of the active run.
        run_name: Name of a new run.
        description: Description of a new run.

    Raises:
        ConfigError: If ``tags`` is not a dict, or not the JSON of one.
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
        # The client takes a run id; MLflow's functions only find a run that was started in the calling thread.
        self._client: Any = None

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Store ``values`` as parameters; dicts as ``name/inner``. MLflow truncates long texts."""
        run = self.tracker
        from mlflow.entities import Param

        params = [Param(name, str(value)) for name, value in flat(as_plain_data(values)).items()]
        for first in range(0, len(params), _PARAMS_PER_CALL):
            self._client.log_batch(run.info.run_id, params=params[first : first + _PARAMS_PER_CALL])

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log numbers, one-element tensors on any device, and dicts of these.

        Other values are skipped, with one warning per name.

        Args:
            values: Values by name; dicts are logged as ``name/inner``.
            step: Step of the values. Default: 0.
            kwargs: Keyword arguments for ``MlflowClient.log_batch``, such as ``synchronous=False``.
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
        """Log a matplotlib or plotly figure as the artifact ``artifact_file``.

        Args:
            figure: The figure.
            artifact_file: Path below the run's artifacts; its suffix selects the format.
            save_kwargs: Keyword arguments for the figure's method that saves it.
        """
        run_id = self.tracker.info.run_id
        self._client.log_figure(run_id, figure, artifact_file, save_kwargs=save_kwargs or None)

    def _log_images(self, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        """``kwargs`` are for ``MlflowClient.log_image``."""
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
        """Log a table as a JSON artifact, from ``columns`` and ``data``, or from a pandas ``dataframe``.

        If an artifact of the same name exists, MLflow appends the rows to it, using pandas.

        Args:
            table_name: Name of the table; ``.json`` is added if it has no suffix.
            columns: Column names. Default: ``0``, ``1``, ….
            data: Rows.
            dataframe: A pandas data frame, in place of both.
            step: Step of the table; part of the artifact name, because MLflow's tables have no step.

        Raises:
            ConfigError: If neither ``data`` nor ``dataframe`` is given.
        """
        table = table_rows(data, dataframe)
        if dataframe is None:
            names = columns or [str(place) for place in range(len(table[0]) if table else 0)]
            table = {name: [row[place] for row in table] for place, name in enumerate(names)}
        file = file_name(table_name, step=step, suffix=".json")
        run_id = self.tracker.info.run_id  # opens the run and creates `_client`
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

        # MLflow marks the run as finished at exit, even after an error. `atexit` calls the last registered first.
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
        experiment = self._client.get_experiment_by_name(name)
        if experiment is not None:
            return str(experiment.experiment_id)
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
        raise ConfigError(f"`tags` is no valid JSON: {error}. Pass a dict, or its JSON.") from error
    if not isinstance(read, dict):
        raise ConfigError(f"`tags` must be a dict, or one as JSON, got {tags}.")
    return read
