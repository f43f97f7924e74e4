"""Retention: select the checkpoints to keep, and remove all others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from accel_checkpoint.file_names import (
    MANIFEST_NAME,
    PINNED_NAME,
    TEMPORARY_PREFIX,
    checkpoint_number,
    is_checkpoint_file,
)
from accel_checkpoint.files import remove_folder
from accel_checkpoint.manifest import check_complete
from accel_state.errors import ConfigError
from accel_state.user_warnings import warn_user

if TYPE_CHECKING:  # `ProjectConfiguration` needs only the class, not the readers of checkpoints
    from accel_checkpoint.listing import Found


@dataclass(frozen=True)
class Retention:
    """Which numbered checkpoints to keep. Each rule adds some; pinned ones and the newest finite one are always kept.

    Attributes:
        newest: The number of newest checkpoints; None keeps all.
        every: Keep numbers that are a multiple of this; None adds none.
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
            raise ConfigError("`best` and `metric` belong together. Pass both, or neither.")

    def kept(self, checkpoints: Sequence[Found]) -> set[Path]:
        """Return the paths of the checkpoints to keep, given the numbered ones in order."""
        if self.newest is None:
            return {each.path for each in checkpoints}
        kept = {each.path for each in checkpoints[-self.newest :]}
        kept |= {each.path for each in checkpoints if (each.path / PINNED_NAME).exists()}
        if self.every is not None:
            kept |= {each.path for each in checkpoints if (each.number or 0) % self.every == 0}
        if self.best is not None:
            values = [
                (each.manifest.metrics[self.metric], index, each.path)
                for index, each in enumerate(checkpoints)
                if each.manifest is not None and self.metric in each.manifest.metrics
            ]
            sign = 1 if self.mode == "min" else -1
            values.sort(key=lambda value: (sign * value[0], -value[1]))  # of equal ones the newest
            kept |= {path for _, _, path in values[: self.best]}
        return kept


def remove_old(folder: Path, *, retention: Retention, newest: Path) -> None:
    """Remove the numbered checkpoints in ``folder`` that are not to be kept.

    The newest checkpoint whose values are all finite is kept beyond the limit. A checkpoint that an interrupted save
    moved aside counts under its original name. ``newest``, which has just been saved, is never removed.
    Warns about a checkpoint that cannot be removed: the new one is safe nevertheless.

    Raises:
        CheckpointError: If ``newest`` is incomplete. Then nothing is removed.
    """
    from accel_checkpoint.listing import checkpoints_in, inspect
    from accel_checkpoint.saving.staging import name_of_displaced

    names = map(name_of_displaced, folder.iterdir())
    limit = retention.newest
    if limit is None or sum(checkpoint_number(name) is not None for name in names) <= limit:
        return  # without reading any manifest
    others = [each for each in checkpoints_in(folder) if each.number is not None and each.path != newest]
    numbered = sorted(
        (each for each in others if each.can_be_loaded),
        key=lambda each: (each.number or 0, each.path),
    )
    added = inspect(newest)
    everything = [*numbered, *([] if added is None else [added])]
    kept = {*retention.kept(everything), newest}
    last_finite = next((each.path for each in reversed(everything) if each.is_finite), None)
    if last_finite not in kept and last_finite is not None:
        kept.add(last_finite)
        warn_user(
            f"`{last_finite}` is kept beyond the limit of {limit}: it is the newest checkpoint without NaN or "
            "infinity. Load it to resume from before they appeared.",
            main_process_only=False,
        )
    first = (everything[-limit].number or 0) if len(everything) >= limit else 0
    check_complete(newest)
    for old in [*numbered, *(each for each in others if (each.number or 0) < first and _is_broken(each))]:
        if old.path not in kept and _has_checkpoint_inside(old.path):
            problem = "is kept beyond the limit: another checkpoint is inside. Save that in another folder"
            warn_user(f"`{old.path}` {problem}.", main_process_only=False)
        elif old.path not in kept:
            remove_checkpoint(old.path, problem=old.state.value if old.problem else "")


def _is_broken(checkpoint: Found) -> bool:
    """Whether it is an incomplete or damaged checkpoint of this package, without user-provided files."""
    if checkpoint.state.name not in ("INCOMPLETE", "DAMAGED"):
        return False
    names = checkpoint.files.names
    return PINNED_NAME not in names and bool(names) and all(map(is_checkpoint_file, names))


def _has_checkpoint_inside(folder: Path) -> bool:
    return any(MANIFEST_NAME in names for path, _, names in os.walk(folder) if path != str(folder))


def remove_checkpoint(folder: Path, *, problem: str = "") -> None:
    """Remove a checkpoint; a rename first hides it, so that no reader sees half of it.

    Warns if it had a problem, or cannot be removed.
    """
    hidden = folder.parent / f"{TEMPORARY_PREFIX}removed-{folder.name}-{os.getpid()}"
    text = f"The old checkpoint `{folder}`, which was {problem}, is removed." if problem else ""
    try:
        folder.rename(hidden)
        remove_folder(hidden)
    except OSError as error:
        text = f"The old checkpoint `{folder}` could not be removed: {error}. Remove it by hand."
    if text:
        warn_user(text, main_process_only=False)
