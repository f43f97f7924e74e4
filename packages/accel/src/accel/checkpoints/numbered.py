"""The numbered checkpoints in the folder of a project."""

from __future__ import annotations

import os
from pathlib import Path

from accel_checkpoint.file_names import CHECKPOINTS
from accel_checkpoint.folder import agree_on_newest
from accel_checkpoint.listing import is_part, newest_of_other_run
from accel_checkpoint.saving.saver import Saver
from accel_state.errors import CheckpointError, ConfigError
from accel_state.logging import get_logger
from accel_state.user_warnings import warn_user

logger = get_logger(__name__)


def newest_checkpoint(folder: Path | None, saver: Saver, *, missing_ok: bool) -> Path | None:
    """Return the newest checkpoint that the main process sees, the same on every rank. Every rank must call it.

    Damaged checkpoints are skipped with a warning.

    Raises:
        ConfigError: If the project has no folder.
        CheckpointError: If there is no complete checkpoint, unless ``missing_ok``.
    """
    if folder is None:
        raise ConfigError(
            "`load_state` does not know where to look: pass `input_dir`, or give the Accelerator a `project_dir`."
        )
    newest = agree_on_newest(folder.resolve(), saver)
    if newest is None and not missing_ok:
        raise CheckpointError(
            f"There is no complete checkpoint in `{folder}`. Pass the folder of the checkpoint to load, "
            "or `missing_ok=True` to start from the beginning."
        )
    return newest


def target_of(
    number: int, folder: Path | None, *, output_dir: str | os.PathLike[str] | None, may_exist: bool
) -> Path:
    """Return the path of a new checkpoint with that number.

    Raises:
        ConfigError: If the project has no folder, or the checkpoint exists.
    """
    if output_dir is not None:
        warn_user(
            f"`output_dir={os.fspath(output_dir)!r}` has no effect: the project names its checkpoints. "
            "Leave it out, or turn `automatic_checkpoint_naming` off.",
        )
    if folder is None:
        raise ConfigError("`automatic_checkpoint_naming` needs a `project_dir`. Give the Accelerator one.")
    target = folder.resolve() / CHECKPOINTS.name(number)
    # A part of one machine, whose checkpoint was never completed, is invisible to the main process and replaced here.
    if target.exists() and not may_exist and not is_part(target):
        raise ConfigError(
            f"The checkpoint `{target}` exists. Load it to resume from it, or set "
            "`accelerator.project_configuration.iteration` to the next number."
        )
    return target


def notice_other_run(folder: Path, *, before: int | None) -> int | None:
    """Warn once if the newest checkpoint is of another run, which also saves here; return its number.

    Args:
        folder: The folder of the checkpoints.
        before: The result of the last call.
    """
    newest_number, is_of_other = newest_of_other_run(folder, before=before)
    if is_of_other:
        logger.warning_once(
            "Another run saves in `%s` too: each of them may remove the other's checkpoints, or load them. Give "
            "each run a separate `project_dir`, or end one of them.",
            folder,
        )
    return newest_number
