"""DVCLive: metrics in plain files, beside the data and models that DVC keeps."""

from __future__ import annotations

import re
import time
from typing import Any

from accel_trackers.images import by_place
from accel_trackers.main_process import on_main_process
from accel_trackers.service import ServiceTracker
from accel_trackers.values import as_number, as_plain_data, flat


class DVCLiveTracker(ServiceTracker):
    """Logs to a ``Live`` of dvclive, which writes into the folder ``dvclive``.

    Args:
        run_name: The experiment of DVC is called so, with the time of its start behind it (an experiment replaces one
            of the same name), unless ``exp_name`` is given.
        live: A ``Live`` of your own; `finish` ends it.
        kwargs: Handed to ``dvclive.Live`` otherwise, such as ``dir``, ``report``, ``save_dvc_exp``.
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
        """Log numbers (tensors of one element are numbers), strings, and dicts of these; end the step.

        What is none of these is left out, with one warning per name.

        Args:
            values: By name; dicts are logged as ``name/inner``.
            step: Where on the axis they belong; one after the last if not given.
            kwargs: Handed to ``Live.log_metric``.
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

    @on_main_process
    def log_images(self, values: dict[str, Any], step: int | None = None) -> None:
        """Log images by name, one or many each (see `accel_trackers.images.pictures`), as PNG files ``name/step.png``.

        Args:
            values: By name; of many, each has its place as a name: ``name/0``, ``name/1``, ….
            step: Where on the axis they belong; the step that is under way if not given.
        """
        live = self.tracker
        if step is not None:
            live.step = step
        for name, image in by_place(values).items():
            live.log_image(f"{name}/{live.step}.png", image)  # one of the same name would be replaced

    @on_main_process
    def log_figures(self, values: dict[str, Any], step: int | None = None) -> None:
        """Log figures of matplotlib as PNG files ``name/step.png``, by name."""
        self.log_images(values, step=step)

    @on_main_process
    def log_artifact(self, local_path: str, artifact_path: str | None = None, **kwargs: Any) -> None:
        """Have DVC keep a file or folder, as ``Live.log_artifact`` does with ``kwargs``.

        Args:
            local_path: The file or folder.
            artifact_path: The name of the artifact.
            kwargs: Handed to ``Live.log_artifact``, such as ``type="model"``.
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
        # Names of experiments are names of git references.
        return re.sub(r"[^A-Za-z0-9-]+", "-", self.run_name).strip("-") + time.strftime("-%Y%m%d-%H%M%S")

    def _close(self, run: Any) -> None:
        run.end()
