"""Select the checkpoint to load, and check that it can be loaded."""

from __future__ import annotations

import time
from pathlib import Path

from accel_checkpoint.file_names import TEMPORARY_PREFIX
from accel_checkpoint.manifest import problems_of, read_manifest
from accel_checkpoint.ranks.deferred_error import DeferredError
from accel_checkpoint.reading.listing import (
    Found,
    State,
    checkpoints_in,
    folder_of_checkpoints,
    inspect,
    inspect_all,
)
from accel_checkpoint.saving.saver import Saver
from accel_checkpoint.saving.staging import displaced_in, name_of_displaced
from accel_state.errors import CheckpointError


def find_newest(folder: Path, *, allow_foreign: bool = True) -> Path | None:
    """Return the newest checkpoint in ``folder`` that can be loaded; by number, if any has a number.

    It may have been moved aside by a save that was then interrupted. Retries if it finds none, since a running job may
    just be replacing the only one.

    Args:
        folder: The folder of checkpoints.
        allow_foreign: Whether it may be another package's, which has no manifest.

    Raises:
        CheckpointError: If the folder cannot be read.
    """
    states = (State.COMMITTED, State.FOREIGN) if allow_foreign else (State.COMMITTED,)
    try:
        for wait_s in (0.02, 0.1, 0.0):
            good = [found for found in checkpoints_in(folder) if found.state in states]
            good += _displaced_checkpoints(folder)
            if good or not folder.is_dir():
                break
            time.sleep(wait_s)
    except OSError as error:
        raise CheckpointError(
            f"The folder of checkpoints `{folder}` cannot be read ({error}). Check its permissions and its disk."
        ) from error
    return max(good, key=_order).path if good else None


def agree_on_newest(folder: Path, saver: Saver, *, allow_foreign: bool = True) -> Path | None:
    """Return the newest checkpoint that rank 0 finds in ``folder``, or None; the same on every rank.

    Waits for the running save, if any. Every rank must call it. See `find_newest`.

    Raises:
        CheckpointError: On every rank, if rank 0 cannot read the folder.
    """
    found = None
    with DeferredError(saver.agree, "newest", failed=f"No checkpoint was chosen in `{folder}`") as deferred:
        saver.log_failure()
        if saver.topology.rank == 0:
            found = find_newest(folder, allow_foreign=allow_foreign)
    name = deferred.agree("" if found is None else found.name)
    return folder / name if name else None


def check_loadable(folder: Path, *, verify: bool) -> Found:
    """Return the checkpoint in ``folder`` if it can be loaded.

    Args:
        folder: The folder of the checkpoint.
        verify: Read all files and compare their digests with the manifest.

    Raises:
        CheckpointError: If it is missing, incomplete or damaged. The message names the newest complete one.
    """
    if not folder.is_dir():
        displaced = [
            one for one in _displaced_checkpoints(folder.parent) if name_of_displaced(one.path) == folder.name
        ]
        if displaced:
            return check_loadable(displaced[-1].path, verify=verify)
        raise CheckpointError(f"There is no checkpoint `{folder}`.{_hint(folder)}")
    found = inspect(folder)
    if found is None:
        raise CheckpointError(f"`{folder}` holds no checkpoint.{_hint(folder)}")
    if found.state is State.INCOMPLETE:
        raise CheckpointError(
            f"The checkpoint `{folder}` is incomplete: its manifest, which is written last, is missing.{_hint(folder)}"
        )
    problems = [found.problem] if found.problem else []
    if verify and found.manifest is not None and not problems:
        problems = problems_of(folder, found.manifest, digests=True)
    if problems:
        raise CheckpointError(f"The checkpoint `{folder}` is damaged. {' '.join(problems)}{_hint(folder)}")
    return found


def token_of(folder: Path) -> str:
    """Return the token of the save that wrote a checkpoint; empty without a readable manifest."""
    try:
        return read_manifest(folder).token
    except CheckpointError:
        return ""


def part_of_save(folder: Path, token: str) -> Path:
    """Return this machine's part of a save: ``folder``, or a hidden folder if a later save was interrupted.

    Args:
        folder: Where the part normally is.
        token: Token of rank 0's part.
    """
    if token_of(folder) == token or not folder.parent.is_dir():
        return folder
    hidden = [path for path in folder.parent.iterdir() if path.name.startswith(TEMPORARY_PREFIX)]
    return next((path for path in hidden if token_of(path) == token), folder)


def is_part(folder: Path) -> bool:
    """Whether ``folder`` is another node's part of a checkpoint, without rank 0's files."""
    found = inspect(folder) if folder.is_dir() else None
    return found is not None and found.manifest is not None and found.manifest.place != 0


def _hint(folder: Path) -> str:
    inside = find_newest(folder_of_checkpoints(folder))
    if inside is not None:
        return f" The newest complete one in it is `{inside}`."
    good = find_newest(folder.parent)
    if good is None or good == folder:
        return ""
    return f" The newest complete one beside it is `{good}`."


def _order(found: Found) -> tuple[bool, int, float]:
    return found.number is not None, found.number or 0, found.modified_s


def _displaced_checkpoints(folder: Path) -> list[Found]:
    """Return checkpoints that were moved aside by a save that was then interrupted; see `Staging`."""
    if not folder.is_dir():
        return []
    found = [one for one in inspect_all(displaced_in(folder)) if one.state is State.COMMITTED]
    return sorted(found, key=lambda one: one.modified_s)
