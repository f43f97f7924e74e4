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
    """Logs to a run of wandb, in the project ``run_name``.

    Args:
        run_name: The name of the project; wandb names the run, unless ``name`` is given.
        main_process_only: False makes a run for each rank, all of one ``group``, which must be given then.
        kwargs: Handed to ``wandb.init``, such as ``entity``, ``mode="offline"``, ``group``, ``tags``.

    Raises:
        ConfigError: If each rank is to have a run and there is no ``group``.
    """

    name = "wandb"

    def __init__(self, run_name: str, *, main_process_only: bool = True, **kwargs: Any) -> None:
        super().__init__()
        if not main_process_only and not kwargs.get("group"):
            raise ConfigError(
                "`main_process_only=False` makes a run of wandb for each rank. Pass `group` too, a name of this "
                "training, so that wandb shows its runs together."
            )
        self.run_name = run_name
        self.main_process_only = main_process_only
        self._kwargs = kwargs

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Store ``values`` as the run's config; those of a resumed run may change."""
        self.tracker.config.update(as_plain_data(values), allow_val_change=True)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log ``values``: all that ``Run.log`` takes, and tensors of one element.

        Args:
            values: By name.
            step: wandb ignores steps that lie before the last one, and says so.
            kwargs: Handed to ``Run.log``.
        """
        self.tracker.log(with_numbers(values), step=step, **kwargs)

    @on_main_process
    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log images by name, one or many each (see `accel_trackers.images.pictures`).

        Args:
            values: By name.
            step: Where on the axis they belong.
            kwargs: Handed to ``Run.log``.
        """
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
        """Log a table, from ``columns`` and ``data``, or from a ``dataframe`` of pandas.

        Args:
            table_name: Its name.
            columns: The names of the columns.
            data: The rows; cells may be images, audio and other media of wandb.
            dataframe: Instead of both.
            step: Where on the axis it belongs.
            kwargs: Handed to ``Run.log``.
        """
        run = self.tracker
        import wandb

        table = wandb.Table(columns=columns, data=data, dataframe=dataframe)
        run.log({table_name: table}, step=step, **kwargs)

    @on_main_process
    def log_figures(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log figures of matplotlib as images, by name.

        Args:
            values: By name.
            step: Where on the axis they belong.
            kwargs: Handed to ``Run.log``.
        """
        self.log_images(values, step=step, **kwargs)

    @on_main_process
    def log_histograms(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log the distribution of the numbers in tensors, arrays or lists, by name.

        Args:
            values: By name.
            step: Where on the axis they belong.
            kwargs: Handed to ``Run.log``.
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
            local_path: The file, or the folder with all that is in it.
            artifact_path: The folder in the artifact where it lies.
            name: The artifact's; the name of the file or folder if not given.
            type: What kind of thing it is, such as ``model``.
            aliases: Names of this version beside ``latest``.
            kwargs: Handed to ``wandb.Artifact``, such as ``metadata``.
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
        """Log the gradients of ``model`` from now on, as ``Run.watch`` does with ``kwargs``."""
        self.tracker.watch(model, **kwargs)

    @on_main_process
    def define_metric(self, name: str, **kwargs: Any) -> None:
        """Say how a metric is shown and summed up, as ``Run.define_metric`` does with ``kwargs``."""
        self.tracker.define_metric(name, **kwargs)

    def _open(self) -> Any:
        import wandb

        return wandb.init(project=self.run_name, **self._kwargs)

    def _close(self, run: Any) -> None:
        run.finish(exit_code=1 if is_handling_error() else 0)
