"""Weights & Biases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accel_state.errors import ConfigError
from accel_trackers.ending import is_handling_error
from accel_trackers.images import pictures
from accel_trackers.main_process import on_main_process
from accel_trackers.service import ServiceTracker
from accel_trackers.values import as_array, as_plain_data, with_numbers


class WandBTracker(ServiceTracker):
    """Logs to a wandb run, in the project ``run_name``.

    Args:
        run_name: Name of the project; wandb names the run, unless ``name`` is given.
        main_process_only: If False, each rank has a run; they share the ``group``, which is required then.
        kwargs: Keyword arguments for ``wandb.init``, such as ``entity``, ``mode="offline"``, ``group``, ``tags``.

    Raises:
        ConfigError: If ``main_process_only`` is False and no ``group`` is given.
    """

    name = "wandb"

    def __init__(self, run_name: str, *, main_process_only: bool = True, **kwargs: Any) -> None:
        super().__init__()
        if not main_process_only and not kwargs.get("group"):
            raise ConfigError(
                "`main_process_only=False` creates a wandb run for each rank. Pass `group` too, a name for the "
                "training, so that wandb shows these runs together."
            )
        self.run_name = run_name
        self.main_process_only = main_process_only
        self._kwargs = kwargs

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Store ``values`` as the run's config; a resumed run may change them."""
        self.tracker.config.update(as_plain_data(values), allow_val_change=True)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log values of any type that ``Run.log`` accepts, and one-element tensors on any device.

        Args:
            values: Values by name.
            step: Step of the values. wandb ignores steps before the last one, with a warning.
            kwargs: Keyword arguments for ``Run.log``.
        """
        self.tracker.log(with_numbers(values), step=step, **kwargs)

    def _log_images(self, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        """Images of a name are shown together; ``kwargs`` are for ``Run.log``."""
        run = self.tracker
        import wandb

        shown = {name: [wandb.Image(each) for each in pictures(images)] for name, images in values.items()}
        run.log(shown, step=step, **kwargs)

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
        """Log a table, from ``columns`` and ``data``, or from a pandas ``dataframe``.

        Args:
            table_name: Name of the table.
            columns: Column names.
            data: Rows; cells may be wandb images, audio and other media.
            dataframe: A pandas data frame, in place of both.
            step: Step of the table.
            kwargs: Keyword arguments for ``Run.log``.
        """
        run = self.tracker
        import wandb

        table = wandb.Table(columns=columns, data=data, dataframe=dataframe)
        run.log({table_name: table}, step=step, **kwargs)

    @on_main_process
    def log_histograms(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log the distribution of the elements of tensors of any shape and device, arrays or lists, by name.

        Args:
            values: Values by name.
            step: Step of the values.
            kwargs: Keyword arguments for ``Run.log``.
        """
        run = self.tracker
        import wandb

        shown = {name: wandb.Histogram(as_array(numbers)) for name, numbers in values.items()}
        run.log(shown, step=step, **kwargs)

    @on_main_process
    def log_artifact(
        self,
        local_path: str,
        artifact_path: str | None = None,
        *,
        name: str | None = None,
        type: str = "file",  # noqa: A002  wandb's word for it
        aliases: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Log a file or folder as a version of an artifact.

        Args:
            local_path: File, or folder with all its files.
            artifact_path: Folder inside the artifact.
            name: Name of the artifact. Default: the name of the file or folder.
            type: Type of the artifact, such as ``model``.
            aliases: Names of this version in addition to ``latest``.
            kwargs: Keyword arguments for ``wandb.Artifact``, such as ``metadata``.
        """
        run = self.tracker
        import wandb

        path = Path(local_path)
        artifact = wandb.Artifact(name or path.name, type=type, **kwargs)
        if path.is_dir():
            artifact.add_dir(str(path), name=artifact_path)
        else:
            artifact.add_file(str(path), name="/".join(filter(None, [artifact_path, path.name])))
        run.log_artifact(artifact, aliases=aliases)

    @on_main_process
    def watch(self, model: Any, **kwargs: Any) -> None:
        """Start logging the gradients of ``model``, with keyword arguments for ``Run.watch``."""
        self.tracker.watch(model, **kwargs)

    @on_main_process
    def define_metric(self, name: str, **kwargs: Any) -> None:
        """Set how a metric is displayed and summarized, with keyword arguments for ``Run.define_metric``."""
        self.tracker.define_metric(name, **kwargs)

    def _open(self) -> Any:
        import wandb

        return wandb.init(project=self.run_name, **self._kwargs)

    def _close(self, run: Any) -> None:
        run.finish(exit_code=1 if is_handling_error() else 0)
