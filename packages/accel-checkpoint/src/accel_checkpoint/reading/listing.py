"""List the checkpoints in a folder and their state. Does not import torch."""

from __future__ import annotations

import enum
import os
import time
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from accel_checkpoint.file_names import (
    FOLDER_OF_CHECKPOINTS,
    MANIFEST_NAME,
    METADATA_NAME,
    SHARDED_MODEL_NAME,
    TEMPORARY_PREFIX,
    checkpoint_number,
    is_checkpoint_file,
    numbers_of_models,
    numbers_of_sharded,
    random_states_file,
    ranks_of_random_states,
)
from accel_checkpoint.files import regular_file
from accel_checkpoint.manifest import Manifest, has_manifest, read_manifest
from accel_checkpoint.saved_files import problems_of
from accel_checkpoint.saving.staging import name_of_displaced
from accel_state.errors import CheckpointError

OWN_MARK = "accel_format"
"""A key that marks our random state files; those of other packages do not have it."""


class State(enum.Enum):
    """The state of a checkpoint, determined without reading all files."""

    COMMITTED = "committed"
    FOREIGN = "no manifest (another package's)"
    INCOMPLETE = "incomplete"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint in a folder.

    Attributes:
        path: The folder.
        state: Whether it is complete.
        manifest: Its manifest, if it has a readable one.
        problem: What is wrong with it; empty if nothing is.
        modified_s: When it was committed, as a POSIX timestamp.
    """

    path: Path
    state: State
    manifest: Manifest | None = None
    problem: str = ""
    modified_s: float = 0.0

    @property
    def number(self) -> int | None:
        """Its number, or None if its name has none."""
        return checkpoint_number(name_of_displaced(self.path))

    @property
    def token(self) -> str:
        """The token of the save that wrote it; empty without a readable manifest."""
        return "" if self.manifest is None else self.manifest.token

    @property
    def is_finite(self) -> bool:
        """Whether no values are known not to be finite."""
        return self.manifest is None or not self.manifest.nonfinite

    @property
    def can_be_loaded(self) -> bool:
        """Whether its state allows loading it."""
        return self.state in (State.COMMITTED, State.FOREIGN)


def inspect(folder: Path) -> Found | None:
    """Return the checkpoint in ``folder``, or None if it holds no checkpoint files."""
    names = [path.name for path in folder.iterdir()]
    if has_manifest(folder):
        modified_s = (folder / MANIFEST_NAME).lstat().st_mtime
        try:
            manifest = read_manifest(folder)
        except CheckpointError as error:
            return Found(folder, State.DAMAGED, problem=str(error), modified_s=modified_s)
        problems = problems_of(folder, manifest, digests=False)
        state = State.DAMAGED if problems else State.COMMITTED
        return Found(folder, state, manifest, " ".join(problems), modified_s)
    is_numbered = bool(names) and checkpoint_number(folder.name) is not None
    is_known = numbers_of_models(names) or ranks_of_random_states(names) or _has_parts(folder, names)
    if not is_numbered and not is_known:
        return None
    modified_s = folder.stat().st_mtime
    if ranks_of_random_states(names) and not is_own(folder):
        return Found(folder, State.FOREIGN, modified_s=modified_s)
    return Found(folder, State.INCOMPLETE, problem=f"It has no `{MANIFEST_NAME}`.", modified_s=modified_s)


def _has_parts(folder: Path, names: list[str]) -> bool:
    """Whether a model lies in parts in a folder of its own."""
    tables = [f"{name}/{METADATA_NAME}" for name in names if is_checkpoint_file(name)]
    return bool(
        numbers_of_sharded(SHARDED_MODEL_NAME, [name for name in tables if (folder / name).is_file()])
    )


def is_own(folder: Path) -> bool:
    """Whether this package wrote a folder that has no manifest, which means that its manifest is lost."""
    ranks = ranks_of_random_states(path.name for path in folder.iterdir())
    if not ranks:
        return False
    try:
        with zipfile.ZipFile(regular_file(folder, random_states_file(ranks[0]))) as archive:
            [name] = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if archive.getinfo(name).file_size > 2**20:
                return False
            return OWN_MARK.encode() in archive.read(name)
    except (zipfile.BadZipFile, ValueError, CheckpointError):
        return False


def folder_of_checkpoints(folder: Path) -> Path:
    """Return `folder/checkpoints` if it exists, since users may pass the project's folder."""
    inner = folder / FOLDER_OF_CHECKPOINTS
    return inner if inner.is_dir() else folder


def checkpoints_in(folder: Path) -> list[Found]:
    """Return the checkpoints in ``folder``: first those with a number, then the others by time; oldest first."""
    try:
        with os.scandir(folder) as entries:
            paths = [
                Path(entry.path)
                for entry in entries
                if not entry.name.startswith(TEMPORARY_PREFIX) and entry.is_dir()
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(inspect_all(paths), key=lambda one: (one.number is None, one.number or 0, one.modified_s))


def inspect_all(paths: Iterable[Path]) -> list[Found]:
    """Return the checkpoints among ``paths``, also those that cannot be read."""
    found = []
    for path in paths:
        try:
            one = inspect(path)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not os.path.lexists(path):
                continue  # just removed by a running job
            one = Found(path, State.UNREADABLE, problem=str(error), modified_s=time.time())
            if one.number is None and isinstance(error, PermissionError):
                continue  # no checkpoint of this run, such as `lost+found`
        if one is not None:
            found.append(one)
    return found
