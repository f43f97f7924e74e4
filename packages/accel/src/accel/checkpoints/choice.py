"""Which checkpoint is loaded, and whether it may be."""

from __future__ import annotations

from pathlib import Path

from accel.checkpoints.catalogue import Found, State, inspect, newest_in
from accel.checkpoints.manifest import problems_of
from accel.checkpoints.staging import PREVIOUS_PREFIX
from accel_state.errors import CheckpointError


def newest_checkpoint(folder: Path) -> Path:
    """Return the newest complete checkpoint in ``folder``.

    Raises:
        CheckpointError: If there is none.
    """
    found = newest_in(folder)
    displaced = [one for one in _displaced(folder) if found is None or one.modified_s > found.modified_s]
    if displaced:
        return max(displaced, key=lambda one: one.modified_s).path
    if found is None:
        raise CheckpointError(
            f"There is no complete checkpoint in `{folder}`. Name the folder that is meant."
        )
    return found.path


def check_loadable(folder: Path, *, verify: bool) -> Found:
    """Return what ``folder`` is, if it can be loaded.

    Args:
        folder: The checkpoint.
        verify: Read all of it and compare it with the digests of the manifest.

    Raises:
        CheckpointError: If it is missing, incomplete or damaged; the message names the newest good one.
    """
    if not folder.is_dir():
        displaced = [
            one for one in _displaced(folder.parent) if one.path.name.startswith(_displaced_prefix(folder))
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


def _hint(folder: Path) -> str:
    good = newest_in(folder.parent)
    if good is None or good.path == folder:
        return ""
    return f" The newest complete one beside it is `{good.path}`."


def _displaced(folder: Path) -> list[Found]:
    """Return checkpoints that lost their name to a successor that never came; see `Staging`."""
    from accel.checkpoints.retention import is_still_wanted

    if not folder.is_dir():
        return []
    paths = [path for path in folder.glob(f"{PREVIOUS_PREFIX}*") if path.is_dir() and is_still_wanted(path)]
    found = [one for one in map(inspect, paths) if one is not None and one.state is State.COMMITTED]
    return sorted(found, key=lambda one: one.modified_s)


def _displaced_prefix(folder: Path) -> str:
    return f"{PREVIOUS_PREFIX}{folder.name}-"
