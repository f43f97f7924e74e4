"""Remove what is no longer wanted: old checkpoints, and what saves that were killed left behind."""

from __future__ import annotations

import os
import re
import shutil
import time
import warnings
from pathlib import Path

from accel_checkpoint.file_names import TEMPORARY_PREFIX
from accel_checkpoint.process_identity import STAMP, has_ended_by_stamp, stamp
from accel_checkpoint.reading.listing import State, checkpoints_in
from accel_checkpoint.saving.staging import displaced_in, is_under_way

STALE_AFTER_S = 24 * 3600.0
"""A temporary folder of a process that cannot be asked for is left over if nothing was added to it for so long."""

_OURS = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}(removed-.+-\d+|.+-[0-9a-f]{{8}}(?:-({STAMP}))?-\d+)")


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
    """Remove the temporary folders of saves whose main process has ended, and of removals that were interrupted.

    Those of processes that ran on another machine, which may share the file system, or before this one booted, go
    once nothing was added to them for a day. Other programs may call theirs alike: only what has a whole name of ours
    goes, and no checkpoint that is still wanted.
    """
    wanted = set(displaced_in(folder))
    with os.scandir(folder) as entries:
        paths = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    for path in paths:
        if path in wanted or is_under_way(path) or not is_left_over(path):
            continue
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue  # another process tidies up too
        except OSError as error:
            warnings.warn(f"The left-over folder `{path}` could not be removed: {error}", stacklevel=2)


def is_left_over(path: Path, *, now_s: float | None = None) -> bool:
    """Whether a folder is a temporary one that nobody will go on with."""
    match = _OURS.fullmatch(path.name)
    if match is None:
        return False
    if match[1].startswith("removed-"):
        return True
    left = match[2]
    has_ended = None if left is None else has_ended_by_stamp(left)
    if has_ended is not None:
        return has_ended or left == stamp()
    try:
        age_s = (time.time() if now_s is None else now_s) - path.stat().st_mtime
    except FileNotFoundError:
        return False
    return age_s > STALE_AFTER_S
