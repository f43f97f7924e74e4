"""DVCLive: metrics in plain files, next to the data and models that DVC versions."""

from __future__ import annotations

import re
import time
from typing import Any

from accel_trackers.images import by_place
from accel_trackers.main_process import on_main_process
from accel_trackers.service import ServiceTracker
from accel_trackers.values import as_number, as_plain_data, flat


class DVCLiveTracker(ServiceTracker):
    """Logs to a DVCLive ``Live``, which writes to the folder ``dvclive``.

    Args:
        run_name: Name of the DVC experiment, followed by its start time, because an experiment replaces one of the same
            name. Unused if ``exp_name`` is given.
        live: An existing ``Live`` to log to; `finish` ends it.
        kwargs: Keyword arguments for ``dvclive.Live`` if ``live`` is not given, such as ``dir``, ``save_dvc_exp``.
    """

    name = "dvclive"
    log_in_background = True

    def __init__(self, run_name: str | None = None, live: Any | None = None, **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self._live = live
        self._kwargs = kwargs

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Store ``values`` as parameters, in ``params.yaml``."""
        self.tracker.log_params(as_plain_data(values))

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log numbers, one-element tensors on any device, strings, and dicts of these; then end the step.

        Other values are skipped, with one warning per name.

        Args:
            values: Values by name; dicts are logged as ``name/inner``.
            step: Step of the values. Default: the step after the last one.
            kwargs: Keyword arguments for ``Live.log_metric``.
        """
        live = self.tracker
        if step is not None:
            live.step = step
        for name, value in flat(values).items():
            shown = value if isinstance(value, str) else as_number(value)
            if shown is None:
                self._warn_once(name, value, "numbers, strings and dicts of these")
            else:
                live.log_metric(name, shown, **kwargs)
        live.next_step()

    def _log_images(self, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        """Images are files ``name/step.png``, by default at the current step."""
        live = self.tracker
        if step is not None:
            live.step = step
        for name, image in by_place(values).items():
            live.log_image(
                f"{name}/{live.step}.png", image, **kwargs
            )  # one of the same name would be replaced

    @on_main_process
    def log_artifact(self, local_path: str, artifact_path: str | None = None, **kwargs: Any) -> None:
        """Version a file or folder with DVC.

        Args:
            local_path: File or folder.
            artifact_path: Name of the artifact.
            kwargs: Keyword arguments for ``Live.log_artifact``, such as ``type="model"``.
        """
        self.tracker.log_artifact(local_path, name=artifact_path, **kwargs)

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
