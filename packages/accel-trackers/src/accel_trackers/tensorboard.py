"""TensorBoard: event files that the program ``tensorboard`` displays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from accel_trackers.abilities import LogsHistograms
from accel_trackers.images import rendered
from accel_trackers.service import ServiceTracker
from accel_trackers.values import as_array, as_number, flat


class TensorBoardTracker(ServiceTracker, LogsHistograms):
    """Writes numbers, one-element tensors, strings, figures and dicts of numbers to ``logging_dir/run_name``.

    Values are in the file when a method returns, so a killed process loses none. Images are batches of shape
    ``(N, C, H, W)`` unless ``dataformats`` is given: tensors on any device, or arrays. Figures stay open. The
    configuration is in ``hparams.yml`` too. Keyword arguments are for ``add_scalar``, ``add_text``, ``add_image``
    or ``add_scalars``, ``add_images`` and ``add_histogram``.

    Args:
        run_name: Name of the run and of its folder.
        logging_dir: Folder of all runs.
        kwargs: Keyword arguments for ``SummaryWriter``.
    """

    name = "tensorboard"
    requires_logging_directory = True

    def __init__(self, run_name: str, logging_dir: str | os.PathLike[str], **kwargs: Any) -> None:
        super().__init__(run_name, **kwargs)
        self.logging_dir = Path(logging_dir) / run_name

    def _open(self) -> Any:
        return _summary_writer()(str(self.logging_dir), **self._kwargs)

    def _close(self, run: Any) -> None:
        run.close()

    def _store_config(self, run: Any, values: dict[str, Any]) -> None:
        import yaml

        text = yaml.safe_dump(values, sort_keys=False)
        (self.logging_dir / "hparams.yml").write_text(text, encoding="utf-8")
        shown = {name: v if isinstance(v, int | float | str) else str(v) for name, v in flat(values).items()}
        run.add_hparams(shown, metric_dict={}, run_name=".")
        run.flush()

    def _log(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        for name, value in values.items():
            number = as_number(value)
            if number is not None:
                run.add_scalar(name, number, global_step=step, **kwargs)
            elif isinstance(value, str):
                run.add_text(name, value, global_step=step, **kwargs)
            elif hasattr(picture := rendered(value), "getpixel"):
                run.add_image(name, as_array(picture), global_step=step, dataformats="HWC", **kwargs)
            elif isinstance(value, dict) and all(as_number(inner) is not None for inner in value.values()):
                group = {inner: as_number(number) for inner, number in value.items()}
                run.add_scalars(name, group, global_step=step, **kwargs)
            else:
                self._warn_once(name, value, "numbers, strings, figures and dicts of numbers")
        run.flush()

    def _log_images(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        for name, images in values.items():
            run.add_images(name, images, global_step=step, **kwargs)
        run.flush()

    def _log_figures(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        self._log(run, values, step, **kwargs)

    def _log_histograms(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        for name, numbers in values.items():
            run.add_histogram(name, as_array(numbers), global_step=step, **kwargs)
        run.flush()


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        # Without torch or `tensorboard`, the writer of the package `tensorboardX`, which has the same interface.
        from tensorboardX import SummaryWriter  # type: ignore[import-not-found, no-redef, unused-ignore]
    return SummaryWriter
