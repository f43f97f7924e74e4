"""Aim."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from accel_trackers.general_tracker import on_main_process
from accel_trackers.images import pictures
from accel_trackers.service import ServiceTracker


class AimTracker(ServiceTracker):
    """Logs numbers, one-element tensors, strings, Aim's objects and dicts of these to a run in ``logging_dir``.

    Keyword arguments of `log` are for ``Run.track``, such as ``epoch``, ``context={"subset": "train"}``.

    Args:
        run_name: Name of the run.
        logging_dir: Folder of the repository ``.aim``; created if missing.
        kwargs: Keyword arguments for ``aim.Run``, such as ``experiment``, ``system_tracking_interval``.
    """

    name = "aim"
    requires_logging_directory = True
    log_in_background = True

    def __init__(
        self, run_name: str, logging_dir: str | os.PathLike[str] | None = ".", **kwargs: Any
    ) -> None:
        super().__init__(run_name, **kwargs)
        self.logging_dir = logging_dir

    @on_main_process
    def log_images(  # type: ignore[override]  # Accelerate's signature
        self,
        values: dict[str, Any],
        step: int | None = None,
        kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Log one image or several under each name (see `accel_trackers.images.pictures`), or one with a caption.

        Args:
            values: Images by name; a tuple of an image and a string is an image with its caption.
            step: Step of the values.
            kwargs: Keyword arguments for ``aim.Image`` under ``"aim_image"``, and for ``Run.track`` under ``"track"``.
        """
        run = self.tracker
        of_image, of_track = (dict((kwargs or {}).get(key, {})) for key in ("aim_image", "track"))
        for name, images in values.items():
            caption = {}
            if isinstance(images, tuple) and len(images) == 2 and isinstance(images[1], str):
                images, caption = images[0], {"caption": images[1]}
            shown = [self._library.Image(each, **{**of_image, **caption}) for each in pictures(images)]
            run.track(shown if len(shown) > 1 else shown[0], name=name, step=step, **of_track)

    def _open(self) -> Any:
        import aim

        self._library = aim
        run = aim.Run(repo=None if self.logging_dir is None else os.fspath(self.logging_dir), **self._kwargs)
        run.name = self.run_name
        return run

    def _close(self, run: Any) -> None:
        run.close()

    def _store_config(self, run: Any, values: dict[str, Any]) -> None:
        run["hparams"] = values

    def _log(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        aim = self._library
        types = (str, aim.Audio, aim.Distribution, aim.Figure, aim.Image, aim.Text)
        shown = "numbers, strings, Aim's objects and dicts of these"
        for name, value in self._supported(values, types, shown=shown).items():
            run.track(aim.Text(value) if isinstance(value, str) else value, name=name, step=step, **kwargs)
