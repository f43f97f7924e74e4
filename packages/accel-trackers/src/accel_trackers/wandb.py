"""Weights & Biases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accel_trackers.abilities import LogsArtifacts, LogsHistograms, LogsTables
from accel_trackers.general_tracker import on_main_process
from accel_trackers.images import pictures
from accel_trackers.service import GroupedTracker
from accel_trackers.values import as_array, is_handling_error, with_numbers


class WandBTracker(GroupedTracker, LogsHistograms, LogsTables, LogsArtifacts):
    """Logs to a wandb run: values of any type that ``Run.log`` accepts, and one-element tensors on any device.

    wandb ignores steps before the last one, with a warning. Keyword arguments are for ``Run.log``, those of
    `log_artifact` for ``wandb.Artifact``, such as ``metadata``, or its ``name`` (default: that of the file or folder),
    ``type`` (``"file"``) and ``aliases``, names of the version in addition to ``latest``; ``artifact_path`` is a folder
    inside the artifact. Cells of tables may be wandb's images, audio and other media.

    Args:
        run_name: Name of the project; wandb names the run, unless ``name`` is given.
        main_process_only: If False, each rank has a run; they share the ``group``, which is required then.
        kwargs: Keyword arguments for ``wandb.init``, such as ``entity``, ``mode="offline"``, ``group``, ``tags``.
    """

    name = "wandb"

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

        self._library = wandb
        return wandb.init(project=self.run_name, **self._kwargs)

    def _close(self, run: Any) -> None:
        run.finish(exit_code=1 if is_handling_error() else 0)

    def _store_config(self, run: Any, values: dict[str, Any]) -> None:
        run.config.update(values, allow_val_change=True)  # of a resumed run

    def _log(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        run.log(with_numbers(values), step=step, **kwargs)

    def _log_images(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        shown = {
            name: [self._library.Image(each) for each in pictures(images)] for name, images in values.items()
        }
        run.log(shown, step=step, **kwargs)

    def _log_histograms(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        shown = {name: self._library.Histogram(as_array(each)) for name, each in values.items()}
        run.log(shown, step=step, **kwargs)

    def _log_table(
        self, run: Any, name: str, columns: list[str] | None, rows: Any, step: int | None, **kwargs: Any
    ) -> None:
        run.log({name: self._library.Table(columns=columns, data=rows)}, step=step, **kwargs)

    def _log_artifact(
        self,
        run: Any,
        local_path: str,
        artifact_path: str | None,
        *,
        name: str | None = None,
        type: str = "file",  # noqa: A002  wandb's word for it
        aliases: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        path = Path(local_path)
        artifact = self._library.Artifact(name or path.name, type=type, **kwargs)
        if path.is_dir():
            artifact.add_dir(str(path), name=artifact_path)
        else:
            artifact.add_file(str(path), name="/".join(filter(None, [artifact_path, path.name])))
        run.log_artifact(artifact, aliases=aliases)
