"""Remove what is no longer wanted: old checkpoints, and what saves that were killed left behind."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path

from accel.checkpoints.catalogue import State, checkpoints_in
from accel.checkpoints.layout import TEMPORARY_PREFIX
from accel.checkpoints.locking import is_abandoned
from accel.checkpoints.staging import PREVIOUS_PREFIX


def remove_old(folder: Path, *, keep: int, newest: Path) -> None:
    """Leave at most ``keep`` numbered checkpoints in ``folder``, removing those with the lowest numbers.

    What cannot be removed is a warning: the new checkpoint is safe all the same.

    Args:
        folder: The folder of checkpoints.
        keep: How many stay, `newest` among them.
        newest: The one that has just been saved; it is never removed.
    """
    numbered = [
        found
        for found in checkpoints_in(folder)
        if found.number is not None
        and found.state in (State.COMMITTED, State.FOREIGN)
        and found.path != newest
    ]
    for found in numbered[: max(0, len(numbered) - (keep - 1))]:
        remove_at_once(found.path)


def remove_at_once(folder: Path) -> None:
    """Remove a folder such that nobody ever meets half of it."""
    hidden = folder.parent / f"{TEMPORARY_PREFIX}removed-{folder.name}-{os.getpid()}"
    try:
        folder.rename(hidden)
        shutil.rmtree(hidden)
    except OSError as error:
        warnings.warn(f"The old checkpoint `{folder}` could not be removed: {error}", stacklevel=2)


def remove_left_over(folder: Path) -> None:
    """Remove the temporary folders of saves whose process is gone."""
    for entry in os.scandir(folder):
        if not entry.name.startswith(TEMPORARY_PREFIX) or not entry.is_dir(follow_symlinks=False):
            continue
        path = Path(entry.path)
        if is_still_wanted(path):
            continue
        try:
            if is_abandoned(path):
                shutil.rmtree(path)
        except FileNotFoundError:
            continue  # another process tidies up too
        except OSError as error:
            warnings.warn(f"The left-over folder `{path}` could not be removed: {error}", stacklevel=2)


def is_still_wanted(path: Path) -> bool:
    """Whether it is a checkpoint that lost its name to a successor which never came."""
    if not path.name.startswith(PREVIOUS_PREFIX):
        return False
    name = path.name.removeprefix(PREVIOUS_PREFIX).rsplit("-", 2)[0]
    return not (path.parent / name).exists()
