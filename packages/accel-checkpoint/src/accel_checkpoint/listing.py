"""The checkpoints in a folder: their state, the newest one, and the one to load. Does not import torch."""

from __future__ import annotations

import enum
import errno
import os
import re
import time
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from accel_checkpoint.file_names import (
    CHECKPOINTS,
    FOLDER_OF_CHECKPOINTS,
    MANIFEST_NAME,
    METADATA_NAME,
    MODEL_TABLES,
    OWN_MARK,
    RANDOM_STATES,
    TEMPORARY_PREFIX,
    checkpoint_number,
    is_checkpoint_file,
    numbers_of_models,
)
from accel_checkpoint.files import SavedFiles, regular_file
from accel_checkpoint.manifest import Manifest, has_manifest, read_manifest
from accel_checkpoint.process_identity import TOKEN, has_ended_by_stamp, stamp
from accel_checkpoint.saving.staging import displaced_in, name_of_displaced
from accel_state.errors import CheckpointError
from accel_state.user_warnings import warn_user


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
        name: Its name; its original one if an interrupted save has moved it aside.
        state: Whether it is complete.
        files: Its files, compared with its manifest on access.
        manifest: Its manifest, if it has a readable one.
        problem: The problem, if any; else empty.
        modified_s: When it was committed, as a POSIX timestamp.
    """

    path: Path
    name: str
    state: State
    files: SavedFiles
    manifest: Manifest | None = None
    problem: str = ""
    modified_s: float = 0.0

    @property
    def number(self) -> int | None:
        """Its number, or None if its name has none."""
        return checkpoint_number(self.name)

    def next_number(self) -> str:
        """Return the next unused number in its folder, for a save that replaces none; empty without numbers."""
        return "" if self.number is None else str(highest_number(self.path.parent) + 1)

    @property
    def token(self) -> str:
        """The token of the save that wrote it; empty without a readable manifest."""
        return "" if self.manifest is None else self.manifest.token

    @property
    def is_finite(self) -> bool:
        """Whether no values are known not to be finite."""
        return self.manifest is None or not self.manifest.nonfinite

    @property
    def has_weights_alone(self) -> bool:
        """Whether it is a folder of a model's weights, such as `save_model` writes, and no checkpoint of a run."""
        is_other = self.state is not State.INCOMPLETE or self.number is not None
        return not is_other and not RANDOM_STATES.numbers(self.files.names)

    @property
    def can_be_loaded(self) -> bool:
        """Whether its state allows loading it."""
        return self.state in (State.COMMITTED, State.FOREIGN)


def inspect(folder: Path) -> Found | None:
    """Return the checkpoint in ``folder``, or None if it has no checkpoint files."""
    names = [path.name for path in folder.iterdir()]
    if has_manifest(folder):
        modified_s = (folder / MANIFEST_NAME).lstat().st_mtime
        try:
            manifest = read_manifest(folder)
        except CheckpointError as error:
            return _without_manifest(folder, State.DAMAGED, problem=str(error), modified_s=modified_s)
        files = SavedFiles(folder, manifest.files_here, hint=partial(_hint, folder))
        problems = files.problems(digests=False)
        state = State.DAMAGED if problems else State.COMMITTED
        return Found(folder, folder.name, state, files, manifest, " ".join(problems), modified_s)
    is_numbered = checkpoint_number(folder.name) is not None
    is_known = numbers_of_models(names) or RANDOM_STATES.numbers(names) or _has_parts(folder, names)
    if not is_numbered and not is_known:
        return None
    modified_s = folder.stat().st_mtime
    if RANDOM_STATES.numbers(names) and not _is_ours(folder, names):
        return _without_manifest(folder, State.FOREIGN, modified_s=modified_s)
    problem = f"It has no `{MANIFEST_NAME}`." if names else "It is empty."
    return _without_manifest(folder, State.INCOMPLETE, problem=problem, modified_s=modified_s)


def _without_manifest(folder: Path, state: State, *, modified_s: float, problem: str = "") -> Found:
    """Return a checkpoint without a readable manifest."""
    return Found(folder, folder.name, state, SavedFiles(folder), None, problem, modified_s)


def _has_parts(folder: Path, names: list[str]) -> bool:
    """Whether a model is stored in parts, in a separate folder."""
    tables = [f"{name}/{METADATA_NAME}" for name in names if is_checkpoint_file(name)]
    return bool(MODEL_TABLES.numbers([name for name in tables if (folder / name).is_file()]))


def _is_ours(folder: Path, names: list[str]) -> bool:
    """Whether this package wrote a folder that has random states and no manifest: then the manifest is lost."""
    try:
        first = RANDOM_STATES.name(RANDOM_STATES.numbers(names)[0])
        with zipfile.ZipFile(regular_file(folder, first)) as archive:
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
    """Return the checkpoints in ``folder``, the newest last: first unnumbered ones by time, then numbered ones.

    Checkpoints that an interrupted save has moved aside are included; see `Staging`.
    """
    try:
        with os.scandir(folder) as entries:
            paths = [
                Path(entry.path)
                for entry in entries
                if not entry.name.startswith(TEMPORARY_PREFIX) and _is_folder(entry)
            ]
        displaced = [
            replace(each, name=name_of_displaced(each.path)) for each in inspect_all(displaced_in(folder))
        ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    usable = [each for each in displaced if each.can_be_loaded or each.state is State.UNREADABLE]
    checkpoints = [*inspect_all(paths), *usable]
    return sorted(checkpoints, key=lambda each: (each.number is not None, each.number or 0, each.modified_s))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        return error.errno != errno.ELOOP  # other errors are reported when the folder is read


def inspect_all(paths: Iterable[Path]) -> list[Found]:
    """Return the checkpoints among ``paths``, including unreadable ones."""
    checkpoints = []
    for path in paths:
        try:
            checkpoint = inspect(path)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not os.path.lexists(path):
                continue  # just removed by a running job
            checkpoint = _without_manifest(path, State.UNREADABLE, problem=str(error), modified_s=time.time())
            if checkpoint.number is None and isinstance(error, PermissionError):
                continue  # not a checkpoint of this run, such as `lost+found`
        if checkpoint is not None:
            checkpoints.append(checkpoint)
    return checkpoints


def find_newest(
    folder: Path, *, allow_foreign: bool = True, report: bool = False, other_than: Path | None = None
) -> Path | None:
    """Return the newest checkpoint in ``folder`` that can be loaded; by number, if any has a number.

    Retries if the last one cannot be loaded, since a running job may just be replacing it.

    Args:
        folder: The folder of checkpoints.
        allow_foreign: Whether it may be another package's, which has no manifest.
        report: Warn of newer checkpoints that are incomplete or damaged; raise an error if one cannot be read.
        other_than: A checkpoint to ignore.

    Raises:
        CheckpointError: If the folder cannot be read.
    """
    states = (State.COMMITTED, State.FOREIGN) if allow_foreign else (State.COMMITTED,)
    try:
        for wait_s in (0.02, 0.1, 0.0):
            checkpoints = [each for each in checkpoints_in(folder) if each.path != other_than]
            good = [number for number, each in enumerate(checkpoints) if each.state in states]
            newest = checkpoints[good[-1]].path if good else None
            skipped = [each for each in checkpoints[good[-1] + 1 if good else 0 :] if not each.can_be_loaded]
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


def _report_skipped(folder: Path, newest: Path | None, skipped: Sequence[Found]) -> None:
    for each in skipped:
        if each.state is State.UNREADABLE:
            raise CheckpointError(
                f"The checkpoint `{each.path}` may be the newest, but cannot be read: {each.problem}. Make it readable "
                "or remove it, or pass the folder of the checkpoint to load."
            )
    listed = "; ".join(f"`{each.path.name}` is {each.state.value}: {each.problem}" for each in skipped)
    chosen = f"No checkpoint in `{folder}` is complete, so none is loaded."
    if newest is not None:
        chosen = f"`{newest}` is loaded, which is not the newest checkpoint."
    warn_user(f"{chosen} {listed} Run `accel checkpoint verify {folder}` for details.")


def check_loadable(folder: Path, *, verify: bool = False) -> Found:
    """Return the checkpoint in ``folder`` if it can be loaded.

    Args:
        folder: The folder of the checkpoint.
        verify: Read all files and compare their digests with the manifest; `load_state` compares the files it reads.

    Raises:
        CheckpointError: If it is missing, incomplete or damaged. The message names the newest complete one.
    """
    if folder.is_dir():
        try:
            checkpoint = inspect(folder)
        except FileNotFoundError as error:
            raise CheckpointError(
                f"The checkpoint `{folder}` has just been removed.{_hint(folder)}"
            ) from error
    else:
        displaced = [each for each in checkpoints_in(folder.parent) if each.name == folder.name]
        if not displaced:
            raise CheckpointError(f"There is no checkpoint `{folder}`.{_hint(folder)}")
        checkpoint = displaced[-1]
    if checkpoint is None:
        raise CheckpointError(f"`{folder}` has no checkpoint.{_hint(folder)}")
    if checkpoint.state is State.INCOMPLETE:
        raise CheckpointError(
            f"The checkpoint `{folder}` is incomplete: its manifest, which is written last, is missing.{_hint(folder)}"
        )
    problems = [checkpoint.problem] if checkpoint.problem else []
    if verify and not problems:
        problems = checkpoint.files.problems(digests=True)
    if problems:
        raise CheckpointError(f"The checkpoint `{folder}` is damaged. {' '.join(problems)}{_hint(folder)}")
    return checkpoint


def token_of(folder: Path) -> str:
    """Return the token of the save that wrote a checkpoint; empty without a readable manifest."""
    try:
        return read_manifest(folder).token
    except (CheckpointError, OSError):
        return ""


def part_of_save(folder: Path, token: str) -> Path:
    """Return this machine's part of a save: ``folder``, or a hidden folder if a later save was interrupted.

    Args:
        folder: The usual folder of the part.
        token: Token of rank 0's part; empty if it has none.
    """
    if not token or token_of(folder) == token or not folder.parent.is_dir():
        return folder
    hidden = [path for path in folder.parent.iterdir() if path.name.startswith(TEMPORARY_PREFIX)]
    return next((path for path in hidden if token_of(path) == token), folder)


def is_part(folder: Path) -> bool:
    """Whether ``folder`` is another node's part of a checkpoint, without rank 0's files."""
    parts = inspect_all([folder]) if folder.is_dir() else []
    return any(part.manifest is not None and part.manifest.place != 0 for part in parts)


def highest_number(folder: Path) -> int:
    """Return the highest number that the name of a folder in ``folder`` has; -1 if none has one."""
    with os.scandir(folder) as entries:
        numbers = [checkpoint_number(name_of_displaced(Path(entry.name))) for entry in entries]
    return max((number for number in numbers if number is not None), default=-1)


def newest_of_other_run(folder: Path, *, before: int | None) -> tuple[int, bool]:
    """Return the highest number in ``folder``, and whether another run, which is still running, wrote it.

    It is running if its process is alive here, or if the number was at most ``before`` at the last call.
    """
    newest = highest_number(folder)
    match = re.fullmatch(TOKEN, token_of(folder / CHECKPOINTS.name(newest)))
    # The parent may be a notebook that has trained before.
    if match is None or match[1] == stamp() or match[1].split("-")[1] == str(os.getppid()):
        return newest, False
    return newest, (before is not None and newest > before) or has_ended_by_stamp(match[1]) is False


def _hint(folder: Path) -> str:
    """Return a sentence with the newest checkpoint that can be loaded instead; empty if there is none."""
    try:
        inside = find_newest(folder_of_checkpoints(folder))
        if inside is not None:
            return f" The newest complete one in it is `{inside}`."
        good = find_newest(folder.parent, other_than=folder)
    except OSError:  # the error with the hint matters more than an unreadable folder
        return ""
    return "" if good is None else f" The newest complete one next to it is `{good}`."
