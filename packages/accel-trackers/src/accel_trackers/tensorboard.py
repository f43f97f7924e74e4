"""TensorBoard: event files that the program ``tensorboard`` displays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from accel_trackers.figures import as_picture
from accel_trackers.main_process import on_main_process
from accel_trackers.service import ServiceTracker
from accel_trackers.values import as_array, as_number, as_plain_data, flat


class TensorBoardTracker(ServiceTracker):
    """Writes scalars, texts, groups of scalars, images, figures and histograms to ``logging_dir/run_name``.

    Values are in the file when ``log`` returns, so a killed process loses none.

    Args:
        run_name: Name of the run and of its folder.
        logging_dir: Folder of all runs.
        kwargs: Keyword arguments for ``SummaryWriter``.
    """

    name = "tensorboard"
    requires_logging_directory = True

    def __init__(self, run_name: str, logging_dir: str | os.PathLike[str], **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self.logging_dir = Path(logging_dir) / run_name
        self._kwargs = kwargs

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Store ``values`` as hyperparameters for TensorBoard's page, and in ``hparams.yml``.

        The page shows numbers, strings and booleans, dicts as ``name/inner``, and other values as text.
        """
        writer = self.tracker
        import yaml

        plain = {str(name): as_plain_data(value) for name, value in values.items()}
        (self.logging_dir / "hparams.yml").write_text(
            yaml.safe_dump(plain, sort_keys=False), encoding="utf-8"
        )
        shown = {name: v if isinstance(v, int | float | str) else str(v) for name, v in flat(plain).items()}
        writer.add_hparams(shown, metric_dict={}, run_name=".")
        writer.flush()

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log numbers, one-element tensors on any device, strings, matplotlib figures, and dicts of numbers.

        Other values are skipped, with one warning per name.

        Args:
            values: Values by name.
            step: Step of the values.
            kwargs: Keyword arguments for ``add_scalar``, ``add_text``, ``add_image`` or ``add_scalars``.
        """
        writer = self.tracker
        for name, value in values.items():
            number = as_number(value)
            if number is not None:
                writer.add_scalar(name, number, global_step=step, **kwargs)
            elif isinstance(value, str):
                writer.add_text(name, value, global_step=step, **kwargs)
            elif (picture := as_picture(value)) is not None:
                writer.add_image(name, as_array(picture), global_step=step, dataformats="HWC", **kwargs)
            elif isinstance(value, dict) and all(as_number(inner) is not None for inner in value.values()):
                group = {inner: as_number(number) for inner, number in value.items()}
                writer.add_scalars(name, group, global_step=step, **kwargs)
            else:
                self._warn_once(name, value, "numbers, strings, figures and dicts of numbers")
        writer.flush()

    @on_main_process
    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log batches of images by name: tensors on any device, or arrays.

        Args:
            values: Batches by name, of shape ``(N, C, H, W)`` unless ``dataformats`` is given.
            step: Step of the images.
            kwargs: Keyword arguments for ``add_images``.
        """
        for name, images in values.items():
            self.tracker.add_images(name, images, global_step=step, **kwargs)
        self.tracker.flush()

    @on_main_process
    def log_figures(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log matplotlib figures as images, by name; they stay open.

        Args:
            values: Values by name.
            step: Step of the values.
            kwargs: Keyword arguments for ``add_image``.
        """
        self.log(values, step=step, **kwargs)

    @on_main_process
    def log_histograms(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log the distribution of the elements of tensors of any shape and device, arrays or lists, by name.

        Args:
            values: Values by name.
            step: Step of the values.
            kwargs: Keyword arguments for ``add_histogram``.
        """
        for name, numbers in values.items():
            self.tracker.add_histogram(name, as_array(numbers), global_step=step, **kwargs)
        self.tracker.flush()

    def _open(self) -> Any:
        return _summary_writer()(str(self.logging_dir), **self._kwargs)

    def _close(self, run: Any) -> None:
        run.close()


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        # Without torch or `tensorboard`, the writer of the package `tensorboardX`, which has the same interface.
        from tensorboardX import SummaryWriter  # type: ignore[import-not-found, no-redef, unused-ignore]
    return SummaryWriter
