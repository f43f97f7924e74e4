"""Remove what is no longer wanted: old checkpoints, and what saves that were killed left behind."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from pathlib import Path

from accel.checkpoints.catalogue import State, checkpoints_in
from accel.checkpoints.layout import FOLDER_OF_CHECKPOINTS, TEMPORARY_PREFIX
from accel.checkpoints.locking import alone_in, is_abandoned
from accel.checkpoints.staging import displaced_in

_TEMPORARY = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}.*")
_OURS = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}(.+-[0-9a-f]{{8}}|removed-.+)-\d+")


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
    with alone_in(folder) as is_alone:
        # Whoever is making one just now has it looked at after the next save.
        abandoned = [path for path in temporary_folders(folder) if is_abandoned(path)] if is_alone else []
    for path in abandoned:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue  # another process tidies up too
        except OSError as error:
            warnings.warn(f"The left-over folder `{path}` could not be removed: {error}", stacklevel=2)


def temporary_folders(folder: Path) -> list[Path]:
    """Return the temporary folders of saves, but for checkpoints that are still wanted.

    In the project's folder of checkpoints, which is ours, everything that is called so; elsewhere what has a whole
    name of ours, since other programs may call theirs alike.
    """
    pattern = _TEMPORARY if folder.name == FOLDER_OF_CHECKPOINTS else _OURS
    with os.scandir(folder) as entries:
        names = [
            entry.name
            for entry in entries
            if pattern.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        ]
    wanted = {path.name for path in displaced_in(folder)}
    return [folder / name for name in names if name not in wanted]
