"""Comet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accel_trackers.abilities import LogsArtifacts, LogsHistograms, LogsTables
from accel_trackers.images import by_place, is_figure
from accel_trackers.service import ServiceTracker
from accel_trackers.values import as_array, file_name, is_data_frame


class CometMLTracker(ServiceTracker, LogsHistograms, LogsTables, LogsArtifacts):
    """Logs to a Comet experiment: numbers and one-element tensors, strings as "other", and dicts of these.

    Tables are CSV files, and matplotlib's figures images. Keyword arguments are for ``log_metric``, ``log_image``,
    ``log_figure``, ``log_histogram_3d``, ``log_table``, and ``log_asset`` or ``log_asset_folder``, for which
    ``artifact_path`` is the folder of a file; a folder has none.

    Args:
        run_name: Name of the project.
        kwargs: Keyword arguments for ``comet_ml.start``, such as ``workspace`` or ``online=False``.
    """

    name = "comet_ml"

    def _open(self) -> Any:
        import comet_ml

        return comet_ml.start(project_name=self.run_name, **self._kwargs)

    def _close(self, run: Any) -> None:
        run.end()

    def _store_config(self, run: Any, values: dict[str, Any]) -> None:
        run.log_parameters(values)

    def _log(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        if step is not None:
            run.set_step(step)
        for name, value in self._supported(
            values, (str,), shown="numbers, strings and dicts of these"
        ).items():
            if isinstance(value, str):
                run.log_other(name, value)
            else:
                run.log_metric(name, value, step=step, **kwargs)

    def _log_images(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        from PIL import Image  # comet_ml brings it

        for name, image in by_place(values).items():
            # comet_ml 3.58 loses one-channel uint8 arrays with NumPy 2: it computes with -1 in their dtype.
            shown = Image.fromarray(image) if hasattr(image, "dtype") else image
            run.log_image(shown, name=name, step=step, **kwargs)

    def _log_figures(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        for name, figure in values.items():
            if is_figure(figure):
                self._log_images(run, {name: figure}, step, **kwargs)
            else:  # plotly's
                run.log_figure(figure_name=name, figure=figure, step=step, **kwargs)

    def _log_histograms(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        for name, numbers in values.items():
            run.log_histogram_3d(as_array(numbers), name=name, step=step, **kwargs)

    def _log_table(
        self, run: Any, name: str, columns: list[str] | None, rows: Any, step: int | None, **kwargs: Any
    ) -> None:
        file = file_name(name, step=step, suffix=".csv")
        run.log_table(file, rows, headers=columns or is_data_frame(rows), **kwargs)

    def _log_artifact(self, run: Any, local_path: str, artifact_path: str | None, **kwargs: Any) -> None:
        path = Path(local_path)
        if path.is_dir():
            run.log_asset_folder(str(path), log_file_name=True, recursive=True, **kwargs)
        else:
            name = "/".join(filter(None, [artifact_path, path.name]))
            run.log_asset(str(path), file_name=name, **kwargs)
