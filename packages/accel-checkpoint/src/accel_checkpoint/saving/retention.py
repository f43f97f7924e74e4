"""Rules for which checkpoints to keep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel_checkpoint.file_names import PINNED_NAME
from accel_state.errors import ConfigError
from accel_state.user_warnings import warn_user

if TYPE_CHECKING:  # `ProjectConfiguration` needs the class, but none of what reads checkpoints
    from accel_checkpoint.reading.listing import Found


@dataclass(frozen=True)
class Retention:
    """Which numbered checkpoints to keep. Each rule adds some; pinned ones and the newest finite one are always kept.

    Attributes:
        newest: The number of newest checkpoints; None keeps all.
        every: Those whose number is a multiple of this; None adds none.
        best: The number of checkpoints with the best value of ``metric``; None adds none.
        metric: Name of the value in `Manifest.metrics`.
        mode: ``min`` if lower values are better, ``max`` if higher ones are.

    Raises:
        ConfigError: If a number is less than 1, ``mode`` is unknown, ``best`` lacks a ``metric``, or a rule adds
            nothing because ``newest`` keeps all.
    """

    newest: int | None = None
    every: int | None = None
    best: int | None = None
    metric: str = ""
    mode: str = "min"

    def __post_init__(self) -> None:
        for name, value in (("newest", self.newest), ("every", self.every), ("best", self.best)):
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigError(f"`{name}` must be a whole number of at least 1, or None, got {value!r}.")
        if self.mode not in ("min", "max"):
            raise ConfigError(f"`mode` must be `min` or `max`, got `{self.mode}`.")
        if self.newest is None and (self.every is not None or self.best is not None):
            raise ConfigError(
                "`every` and `best` keep more than the newest checkpoints. Set `newest` as well."
            )
        if (self.best is None) is not (not self.metric):
            raise ConfigError("`best` and `metric` belong together. Give both, or leave both out.")

    def kept(self, checkpoints: Sequence[Found]) -> set[Path]:
        """Return the paths of the checkpoints to keep, of those with a number, in the order of their numbers."""
        if self.newest is None:
            return {found.path for found in checkpoints}
        kept = {found.path for found in checkpoints[-self.newest :]}
        kept |= {found.path for found in checkpoints if (found.path / PINNED_NAME).exists()}
        if self.every is not None:
            kept |= {found.path for found in checkpoints if (found.number or 0) % self.every == 0}
        if self.best is not None:
            values = [
                (found.manifest.metrics[self.metric], index, found.path)
                for index, found in enumerate(checkpoints)
                if found.manifest is not None and self.metric in found.manifest.metrics
            ]
            sign = 1 if self.mode == "min" else -1
            values.sort(key=lambda one: (sign * one[0], -one[1]))  # of equal ones the newest
            kept |= {path for _, _, path in values[: self.best]}
        return kept


def checked_metrics(metrics: Mapping[str, Any], retention: Retention | None) -> dict[str, float]:
    """Return the metrics of a checkpoint as numbers, without those that are not finite.

    Warns if the one is missing by which `retention` finds the best checkpoints: this one is then none of them.

    Raises:
        ConfigError: If a value is no number, or the metrics have no names.
    """
    if not isinstance(metrics, Mapping):
        raise ConfigError(f"`metrics` must be a dict of numbers by name, got {metrics!r}.")
    numbers = {}
    for name, value in metrics.items():
        try:
            # A loss may have a graph; torch warns when such a tensor becomes a number.
            numbers[str(name)] = float(value.detach() if hasattr(value, "detach") else value)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise ConfigError(f"`metrics` needs one number for `{name}`, got {value!r}.") from error
    finite = {name: number for name, number in numbers.items() if math.isfinite(number)}
    if retention is not None and retention.best is not None and retention.metric not in finite:
        warn_user(
            f"This checkpoint has no finite value of `{retention.metric}`, so it is not kept among the best. Pass "
            f"`metrics={{'{retention.metric}': ...}}` when you save.",
            main_process_only=True,
        )
    return finite
