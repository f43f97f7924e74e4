"""Remove old checkpoints and the temporary folders of interrupted saves."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

from accel_checkpoint.file_names import TEMPORARY_PREFIX, checkpoint_number
from accel_checkpoint.files import remove_folder
from accel_checkpoint.process_identity import has_ended_by_stamp, stamp
from accel_checkpoint.reading.listing import checkpoints_in, inspect, inspect_all
from accel_checkpoint.saving.retention import Retention
from accel_checkpoint.saving.staging import TOKEN, displaced_in, is_active, name_of_displaced
from accel_state.user_warnings import warn_user

STALE_AFTER_S = 24 * 3600.0
"""Age after which a temporary folder is stale if its process cannot be looked up from this machine."""

_OURS = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}(?:removed-.+-\d+|.+-{TOKEN})")


def remove_old(folder: Path, *, retention: Retention, newest: Path) -> None:
    """Remove the numbered checkpoints in ``folder`` that are not to be kept.

    The newest checkpoint whose values are all finite is kept beyond the limit. A checkpoint that an interrupted save
    moved aside counts under its original name.
    Warns about a checkpoint that cannot be removed: the new one is safe nevertheless.

    Args:
        folder: The folder of checkpoints.
        retention: Which to keep.
        newest: The checkpoint that has just been saved; never removed.
    """
    names = map(name_of_displaced, folder.iterdir())
    limit = retention.newest
    if limit is None or sum(checkpoint_number(name) is not None for name in names) <= limit:
        return  # without reading any manifest
    numbered = sorted(
        (
            found
            for found in [*checkpoints_in(folder), *inspect_all(displaced_in(folder))]
            if found.number is not None and found.can_be_loaded and found.path != newest
        ),
        key=lambda found: (found.number or 0, found.path),
    )
    added = inspect(newest)
    everything = [*numbered, *([] if added is None else [added])]
    kept = {*retention.kept(everything), newest}
    last_finite = next((found.path for found in reversed(everything) if found.is_finite), None)
    for found in numbered:
        if found.path in kept:
            continue
        if found.path != last_finite:
            remove_checkpoint(found.path)
            continue
        warn_user(
            f"`{found.path}` is kept beyond the limit of {limit}: it is the newest checkpoint without NaN or infinity. "
            "Load it to resume from before they came.",
            main_process_only=False,
        )


def remove_checkpoint(folder: Path) -> None:
    """Remove a checkpoint; a rename first hides it, so that no reader finds it half removed."""
    hidden = folder.parent / f"{TEMPORARY_PREFIX}removed-{folder.name}-{os.getpid()}"
    try:
        folder.rename(hidden)
        remove_folder(hidden)
    except OSError as error:
        warn_user(
            f"The old checkpoint `{folder}` could not be removed: {error}. Remove it by hand.",
            main_process_only=False,
        )


def remove_stale_folders(folder: Path) -> None:
    """Remove the temporary folders of interrupted removals, and of saves whose main process has ended.

    A process on another machine or from before the last reboot cannot be looked up; its folders are removed once they
    have not changed for a day. Only folders whose full name matches our pattern are removed, since other programs may
    use the same prefix. Checkpoints that were moved aside by an interrupted save are left to `remove_old`.
    """
    wanted = set(displaced_in(folder))
    with os.scandir(folder) as entries:
        paths = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    for path in paths:
        if path in wanted or is_active(path) or not is_stale(path):
            continue
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue  # another process has removed it
        except OSError as error:
            warn_user(
                f"The stale temporary folder `{path}` could not be removed: {error}. Remove it by hand.",
                main_process_only=False,
            )


def is_stale(path: Path, *, now_s: float | None = None) -> bool:
    """Whether a folder is the temporary folder of an interrupted save or removal."""
    match = _OURS.fullmatch(path.name)
    if match is None:
        return False
    left = match[1]
    if left is None:  # of a removal
        return True
    has_ended = has_ended_by_stamp(left)
    if has_ended is not None:
        return has_ended or left == stamp()
    try:
        age_s = (time.time() if now_s is None else now_s) - path.stat().st_mtime
    except FileNotFoundError:
        return False
    return age_s > STALE_AFTER_S
