"""DVCLive: metrics in plain files, next to the data and models that DVC versions."""

from __future__ import annotations

import re
import time
from typing import Any

from accel_trackers.abilities import LogsArtifacts
from accel_trackers.images import by_place
from accel_trackers.service import ServiceTracker


class DVCLiveTracker(ServiceTracker, LogsArtifacts):
    """Logs numbers, one-element tensors, strings and dicts of these to a ``Live``, which writes to ``dvclive``.

    Each call of `log` ends a step; without one, it is the step after the last one. Images are files ``name/step.png``.
    Keyword arguments are for ``Live.log_metric``, ``log_image``, and ``log_artifact``, such as ``type="model"``;
    ``artifact_path`` is the name of the artifact, a file or folder that DVC versions.

    Args:
        run_name: Name of the DVC experiment, followed by its start time, because an experiment replaces one of the same
            name. Unused if ``exp_name`` is given.
        live: An existing ``Live`` to log to; `finish` ends it.
        kwargs: Keyword arguments for ``dvclive.Live`` if ``live`` is not given, such as ``dir``, ``save_dvc_exp``.
    """

    name = "dvclive"
    log_in_background = True

    def __init__(self, run_name: str | None = None, live: Any | None = None, **kwargs: Any) -> None:
        super().__init__(run_name, **kwargs)
        self._live = live

    def _open(self) -> Any:
        if self._live is not None:
            return self._live
        from dvclive import Live

        return Live(**{"exp_name": self._experiment_name(), **self._kwargs})

    def _experiment_name(self) -> str | None:
        if self.run_name is None:
            return None
        # Experiment names are git references, which exclude most punctuation.
        return re.sub(r"[^A-Za-z0-9-]+", "-", self.run_name).strip("-") + time.strftime("-%Y%m%d-%H%M%S")

    def _close(self, run: Any) -> None:
        run.end()

    def _store_config(self, run: Any, values: dict[str, Any]) -> None:
        run.log_params(values)

    def _log(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        if step is not None:
            run.step = step
        for name, value in self._supported(
            values, (str,), shown="numbers, strings and dicts of these"
        ).items():
            run.log_metric(name, value, **kwargs)
        run.next_step()

    def _log_images(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        if step is not None:
            run.step = step
        for name, image in by_place(values).items():
            run.log_image(f"{name}/{run.step}.png", image, **kwargs)  # one of the same name would be replaced

    def _log_artifact(self, run: Any, local_path: str, artifact_path: str | None, **kwargs: Any) -> None:
        run.log_artifact(local_path, name=artifact_path, **kwargs)
