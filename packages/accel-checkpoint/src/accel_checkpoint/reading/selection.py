"""Select the checkpoint to load, and check that it can be loaded."""

from __future__ import annotations

from pathlib import Path

from accel_checkpoint.file_names import TEMPORARY_PREFIX
from accel_checkpoint.manifest import problems_of, read_manifest
from accel_checkpoint.reading.listing import Found, State, folder_of_checkpoints, inspect, newest_in
from accel_checkpoint.saving.staging import displaced_in, name_of_displaced
from accel_state.errors import CheckpointError


def newest_checkpoint(folder: Path) -> Path:
    """Return the newest complete checkpoint in ``folder``.

    Raises:
        CheckpointError: If there is none.
    """
    found = newest_in(folder)
    displaced = [
        one for one in _displaced_checkpoints(folder) if found is None or one.modified_s > found.modified_s
    ]
    if displaced:
        return max(displaced, key=lambda one: one.modified_s).path
    if found is None:
        raise CheckpointError(
            f"There is no complete checkpoint in `{folder}`. Pass the folder of the checkpoint to load."
        )
    return found.path


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
    inside = newest_in(folder_of_checkpoints(folder))
    if inside is not None:
        return f" The newest complete one in it is `{inside.path}`."
    good = newest_in(folder.parent)
    if good is None or good.path == folder:
        return ""
    return f" The newest complete one beside it is `{good.path}`."


def _displaced_checkpoints(folder: Path) -> list[Found]:
    """Return checkpoints that were moved aside by a save that was then interrupted; see `Staging`."""
    if not folder.is_dir():
        return []
    found = [one for one in map(inspect, displaced_in(folder)) if one is not None]
    return sorted((one for one in found if one.state is State.COMMITTED), key=lambda one: one.modified_s)
