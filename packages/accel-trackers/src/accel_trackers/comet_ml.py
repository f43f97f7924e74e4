"""Comet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accel_trackers.figures import is_figure
from accel_trackers.images import by_place
from accel_trackers.main_process import on_main_process
from accel_trackers.service import ServiceTracker
from accel_trackers.tables import file_name, table_rows
from accel_trackers.values import as_array, as_number, as_plain_data, flat


class CometMLTracker(ServiceTracker):
    """Logs to a Comet experiment, in the project ``run_name``.

    Args:
        run_name: Name of the project.
        kwargs: Keyword arguments for ``comet_ml.start``, such as ``workspace`` or ``online=False``.
    """

    name = "comet_ml"

    def __init__(self, run_name: str, **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self._kwargs = kwargs

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Store ``values`` as parameters; dicts as ``name|inner``, as Comet does."""
        self.tracker.log_parameters(as_plain_data(values))

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log numbers and one-element tensors on any device as metrics, strings as "other", and dicts of these.

        Other values are skipped, with one warning per name.

        Args:
            values: Values by name; dicts are logged as ``name/inner``.
            step: Step of the values.
            kwargs: Keyword arguments for ``log_metric``, such as ``epoch``.
        """
        experiment = self.tracker
        if step is not None:
            experiment.set_step(step)
        for name, value in flat(values).items():
            number = as_number(value)
            if number is not None:
                experiment.log_metric(name, number, step=step, **kwargs)
            elif isinstance(value, str):
                experiment.log_other(name, value)
            else:
                self._warn_once(name, value, "numbers, strings and dicts of these")

    def _log_images(self, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        """``kwargs`` are for ``log_image``."""
        experiment = self.tracker
        from PIL import Image  # comet_ml brings it

        for name, image in by_place(values).items():
            # comet_ml 3.58 loses one-channel uint8 arrays with NumPy 2: it computes with -1 in their dtype.
            shown = Image.fromarray(image) if hasattr(image, "dtype") else image
            experiment.log_image(shown, name=name, step=step, **kwargs)

    @on_main_process
    def log_figures(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log figures by name: matplotlib's as images, plotly's unchanged.

        Args:
            values: Values by name.
            step: Step of the values.
            kwargs: Keyword arguments for ``log_image`` or ``log_figure``.
        """
        for name, figure in values.items():
            if is_figure(figure):
                self.log_images({name: figure}, step=step, **kwargs)
            else:
                self.tracker.log_figure(figure_name=name, figure=figure, step=step, **kwargs)

    @on_main_process
    def log_histograms(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log the distribution of the elements of tensors of any shape and device, arrays or lists, by name.

        Args:
            values: Values by name.
            step: Step of the values.
            kwargs: Keyword arguments for ``log_histogram_3d``.
        """
        for name, numbers in values.items():
            self.tracker.log_histogram_3d(as_array(numbers), name=name, step=step, **kwargs)

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
        """Log a table as a CSV file, from ``columns`` and ``data``, or from a pandas ``dataframe``.

        Args:
            table_name: Name of the table; ``.csv`` is added if it has no suffix.
            columns: Column names.
            data: Rows.
            dataframe: A pandas data frame, in place of both.
            step: Step of the table; part of the file name, because Comet's tables have no step.
            kwargs: Keyword arguments for ``log_table``.

        Raises:
            ConfigError: If neither ``data`` nor ``dataframe`` is given.
        """
        file = file_name(table_name, step=step, suffix=".csv")
        rows = table_rows(data, dataframe)
        self.tracker.log_table(file, rows, headers=columns or (dataframe is not None), **kwargs)

    @on_main_process
    def log_artifact(self, local_path: str, artifact_path: str | None = None, **kwargs: Any) -> None:
        """Log a file as an asset, or a folder as all the assets in it.

        Args:
            local_path: File or folder.
            artifact_path: Folder of the asset; ignored if `local_path` is a folder.
            kwargs: Keyword arguments for ``log_asset`` or ``log_asset_folder``, such as ``step``.
        """
        path = Path(local_path)
        if path.is_dir():
            self.tracker.log_asset_folder(str(path), log_file_name=True, recursive=True, **kwargs)
        else:
            name = "/".join(filter(None, [artifact_path, path.name]))
            self.tracker.log_asset(str(path), file_name=name, **kwargs)

    def _open(self) -> Any:
        import comet_ml

        return comet_ml.start(project_name=self.run_name, **self._kwargs)

    def _close(self, run: Any) -> None:
        run.end()
