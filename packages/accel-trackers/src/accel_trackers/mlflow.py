"""MLflow."""

from __future__ import annotations

import atexit
import json
import os
import time
from typing import Any

from accel_state.environment import parse_flag_from_env, variable
from accel_state.errors import ConfigError
from accel_trackers.abilities import LogsArtifacts, LogsTables
from accel_trackers.general_tracker import on_main_process
from accel_trackers.images import by_place
from accel_trackers.service import ServiceTracker
from accel_trackers.values import file_name, flat, has_ended_by_error, is_data_frame, is_handling_error


class MLflowTracker(ServiceTracker, LogsTables, LogsArtifacts):
    """Logs numbers, one-element tensors and dicts of these to an MLflow run, at MLflow's tracking URI.

    Without a step, it is 0. Keyword arguments of `log` are for ``MlflowClient.log_batch``, such as
    ``synchronous=False``, those of `log_images` for ``log_image``. Tables are JSON artifacts, to which MLflow appends
    rows of the same name, using pandas; without ``columns``, these are ``0``, ``1``, …. A file is stored below
    ``artifact_path``, if given.

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
        super().__init__(run_name)
        self.experiment_name = variable("MLFLOW_EXPERIMENT_NAME") or experiment_name
        self.logging_dir = logging_dir
        self.run_id = variable("MLFLOW_RUN_ID") or run_id
        self.tags = _tags(variable("MLFLOW_TAGS") or tags)
        self.nested_run = parse_flag_from_env("MLFLOW_NESTED_RUN", bool(nested_run))
        self.description = description
        # The client takes a run id; MLflow's functions only find a run that was started in the calling thread.
        self._client: Any = None

    @on_main_process
    def log_figure(self, figure: Any, artifact_file: str, **save_kwargs: Any) -> None:
        """Log a matplotlib or plotly figure as the artifact ``artifact_file``.

        Args:
            figure: The figure.
            artifact_file: Path below the run's artifacts; its suffix selects the format.
            save_kwargs: Keyword arguments for the figure's method that saves it.
        """
        run_id = self.tracker.info.run_id  # opens the run and creates `_client`
        self._client.log_figure(run_id, figure, artifact_file, save_kwargs=save_kwargs or None)

    @on_main_process
    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> None:
        """Log all files in ``local_dir`` as artifacts, below ``artifact_path`` if given."""
        run_id = self.tracker.info.run_id
        self._client.log_artifacts(run_id, local_dir, artifact_path)

    def _open(self) -> Any:
        import mlflow

        self._library = mlflow
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
        self._library.end_run("FAILED" if is_handling_error() else "FINISHED")

    def _store_config(self, run: Any, values: dict[str, Any]) -> None:
        params = [self._library.entities.Param(name, str(value)) for name, value in flat(values).items()]
        self._client.log_batch(run.info.run_id, params=params)

    def _log(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        make, now_ms = self._library.entities.Metric, int(time.time() * 1000)
        metrics = [make(name, value, now_ms, step or 0) for name, value in self._supported(values).items()]
        self._client.log_batch(run.info.run_id, metrics=metrics, **kwargs)

    def _log_images(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        for name, image in by_place(values).items():
            self._client.log_image(run.info.run_id, image, key=name, step=step or 0, **kwargs)

    def _log_table(self, run: Any, name: str, columns: list[str] | None, rows: Any, step: int | None) -> None:
        if not is_data_frame(rows):
            names = columns or [str(place) for place in range(len(rows[0]) if rows else 0)]
            rows = {column: [row[place] for row in rows] for place, column in enumerate(names)}
        self._client.log_table(run.info.run_id, rows, file_name(name, step=step, suffix=".json"))

    def _log_artifact(self, run: Any, local_path: str, artifact_path: str | None) -> None:
        self._client.log_artifact(run.info.run_id, local_path, artifact_path)

    def _end_at_exit(self) -> None:
        self._library.end_run("FAILED" if has_ended_by_error() else "FINISHED")

    def _experiment_id(self, name: str) -> str:
        experiment = self._client.get_experiment_by_name(name)
        if experiment is not None:
            return str(experiment.experiment_id)
        location = None if self.logging_dir is None else os.fspath(self.logging_dir)
        return str(self._client.create_experiment(name, artifact_location=location))


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
