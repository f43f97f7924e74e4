"""Select the checkpoint to load, and check that it can be loaded."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from accel_checkpoint.file_names import TEMPORARY_PREFIX, checkpoint_name, checkpoint_number
from accel_checkpoint.manifest import read_manifest
from accel_checkpoint.process_identity import has_ended_by_stamp, stamp
from accel_checkpoint.ranks.agreement import DeferredError
from accel_checkpoint.reading.listing import (
    Found,
    State,
    checkpoints_in,
    folder_of_checkpoints,
    inspect,
    inspect_all,
)
from accel_checkpoint.saved_files import problems_of
from accel_checkpoint.saving.saver import Saver
from accel_checkpoint.saving.staging import TOKEN, displaced_in, name_of_displaced
from accel_state.errors import CheckpointError
from accel_state.user_warnings import warn_user


def find_newest(folder: Path, *, allow_foreign: bool = True, report: bool = False) -> Path | None:
    """Return the newest checkpoint in ``folder`` that can be loaded; by number, if any has a number.

    It may have been moved aside by a save that was then interrupted. Retries if the last one cannot be loaded, since a
    running job may just be replacing it.

    Args:
        folder: The folder of checkpoints.
        allow_foreign: Whether it may be another package's, which has no manifest.
        report: Warn of newer checkpoints that are incomplete or damaged; raise an error if one cannot be read.

    Raises:
        CheckpointError: If the folder cannot be read.
    """
    states = (State.COMMITTED, State.FOREIGN) if allow_foreign else (State.COMMITTED,)
    try:
        for wait_s in (0.02, 0.1, 0.0):
            checkpoints = sorted([*checkpoints_in(folder), *_displaced_checkpoints(folder)], key=_order)
            good = [number for number, found in enumerate(checkpoints) if found.state in states]
            newest = checkpoints[good[-1]].path if good else None
            newer = checkpoints[good[-1] + 1 if good else 0 :]
            skipped = [found for found in newer if not found.can_be_loaded]
            if (good and not skipped) or not folder.is_dir():
                break
            time.sleep(wait_s)
    except OSError as error:
        raise CheckpointError(
            f"The folder of checkpoints `{folder}` cannot be read ({error}). Check its permissions and its disk."
        ) from error
    if report and skipped:
        _report_skipped(folder, newest, skipped)
    return newest


def agree_on_newest(folder: Path, saver: Saver, *, allow_foreign: bool = True) -> Path | None:
    """Return the newest checkpoint that rank 0 finds in ``folder``, or None; the same on every rank.

    Waits for the running save, if any. Every rank must call it. See `find_newest`.

    Raises:
        CheckpointError: On every rank, if rank 0 cannot read the folder, or a checkpoint that may be the newest.
    """
    found = None
    with DeferredError(saver.agree, "newest", failed=f"No checkpoint was chosen in `{folder}`") as deferred:
        saver.log_failure()
        if saver.topology.rank == 0:
            found = find_newest(folder, allow_foreign=allow_foreign, report=True)
    name = deferred.agree("" if found is None else found.name)
    return folder / name if name else None


def _report_skipped(folder: Path, newest: Path | None, skipped: Sequence[Found]) -> None:
    for one in skipped:
        if one.state is State.UNREADABLE:
            raise CheckpointError(
                f"The checkpoint `{one.path}` may be the newest, but cannot be read: {one.problem}. Make it readable "
                "or remove it, or pass the folder of the checkpoint to load."
            )
    listed = "; ".join(f"`{one.path.name}` is {one.state.value}: {one.problem}" for one in skipped)
    chosen = f"No checkpoint in `{folder}` is complete, so none is loaded."
    if newest is not None:
        chosen = f"`{newest}` is loaded, which is not the newest checkpoint."
    warn_user(f"{chosen} {listed} Run `accel checkpoint verify {folder}` to see what is wrong.")


def check_loadable(folder: Path, *, verify: bool = False) -> Found:
    """Return the checkpoint in ``folder`` if it can be loaded.

    Args:
        folder: The folder of the checkpoint.
        verify: Read all files and compare their digests with the manifest; `load_state` compares those that it reads.

    Raises:
        CheckpointError: If it is missing, incomplete or damaged. The message names the newest complete one.
    """
    if not folder.is_dir():
        displaced = [
            one for one in _displaced_checkpoints(folder.parent) if name_of_displaced(one.path) == folder.name
        ]
        if displaced:
            return check_loadable(max(displaced, key=_order).path, verify=verify)
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
    except (CheckpointError, OSError):
        return ""


def part_of_save(folder: Path, token: str) -> Path:
    """Return this machine's part of a save: ``folder``, or a hidden folder if a later save was interrupted.

    Args:
        folder: Where the part normally is.
        token: Token of rank 0's part; empty if it has none.
    """
    if not token or token_of(folder) == token or not folder.parent.is_dir():
        return folder
    hidden = [path for path in folder.parent.iterdir() if path.name.startswith(TEMPORARY_PREFIX)]
    return next((path for path in hidden if token_of(path) == token), folder)


def is_part(folder: Path) -> bool:
    """Whether ``folder`` is another node's part of a checkpoint, without rank 0's files."""
    found = inspect_all([folder]) if folder.is_dir() else []
    return any(one.manifest is not None and one.manifest.place != 0 for one in found)


def newest_of_other_run(folder: Path, *, before: int | None) -> tuple[int, bool]:
    """Return the highest number in ``folder``, and whether that checkpoint is of another run that still goes on.

    That is so if the process of the run is alive here, or if the number was at most ``before`` at the last call.
    """
    numbers = [checkpoint_number(path.name) for path in folder.iterdir()]
    newest = max((number for number in numbers if number is not None), default=-1)
    match = re.fullmatch(TOKEN, token_of(folder / checkpoint_name(newest)))
    # The parent may be a notebook that has trained before.
    if match is None or match[1] == stamp() or match[1].split("-")[1] == str(os.getppid()):
        return newest, False
    return newest, (before is not None and newest > before) or has_ended_by_stamp(match[1]) is False


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
    states = (State.COMMITTED, State.UNREADABLE)
    return [one for one in inspect_all(displaced_in(folder)) if one.state in states]
