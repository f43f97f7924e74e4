"""The hidden folder in which a checkpoint grows, and the one step in which it becomes visible."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from accel_checkpoint.file_names import MANIFEST_NAME, TEMPORARY_PREFIX, is_checkpoint_file
from accel_checkpoint.files import files_below, folders_of, force_to_disk, make_durably
from accel_checkpoint.manifest import has_manifest, read_manifest
from accel_checkpoint.saving.exchange import exchange
from accel_state.errors import CheckpointError, ConfigError

PREVIOUS_PREFIX = f"{TEMPORARY_PREFIX}previous-"
"""Where a checkpoint waits for an instant while its successor takes its name, if two steps are needed."""


_under_way: set[Path] = set()
"""The folders in which this process is saving."""


class Staging:
    """A folder on the file system of the checkpoint: beside its place, or in it where that is a mount point.

    Args:
        target: Where the checkpoint will be.
        token: Told apart from every other save by it; the same on every rank.
    """

    def __init__(self, target: Path, *, token: str) -> None:
        self.target = target
        around = target if target.is_mount() else target.parent
        self.path = around / f"{TEMPORARY_PREFIX}{target.name}-{token}"
        self._undo: Callable[[], object] | None = None
        self._old: Path | None = None

    def make(self) -> None:
        """Make the folder unless another rank has. It is not left over while the main process lives."""
        make_durably(self.target.parent)
        _under_way.add(self.path)
        self.path.mkdir(exist_ok=True)

    def publish(self) -> None:
        """Give the folder its final name; it holds its manifest and all is on the disk.

        Where there is a checkpoint of this name already, the two change places; files in it that belong to no
        checkpoint stay. The old one is there until `settle`, and has its name back after `withdraw`. If this
        raises, all is as it was.
        """
        try:
            self._give_back_displaced()
            if not self.target.exists() or (os.name == "posix" and _is_empty(self.target)):
                self._give_name()
            elif holds_checkpoint(self.target):
                self._replace()
            else:
                self._move_in()
            force_to_disk(self.target.parent)
        except BaseException:
            self.withdraw()
            raise

    def settle(self) -> None:
        """Remove what `publish` has replaced, and let go."""
        old, self._old, self._undo = self._old, None, None
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
        self.release()

    def withdraw(self) -> None:
        """Take back what `publish` has done, as far as it came."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()
            self._old = None

    def discard(self) -> None:
        """Remove the folder with all that is in it, unless it is a checkpoint that `publish` has replaced."""
        if self._undo is None:
            shutil.rmtree(self.path, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """Let go of the folder."""
        _under_way.discard(self.path)

    def _give_back_displaced(self) -> None:
        """Give a checkpoint its name back that lost it to a save which was killed; see `_replace`."""
        if self.target.exists():
            return
        for path in displaced_in(self.target.parent):
            if name_of_displaced(path) == self.target.name:
                path.rename(self.target)
                return

    def _give_name(self) -> None:
        was_there = self.target.exists()
        if was_there:  # empty, and made by somebody who may have chosen who can read it
            shutil.copymode(self.target, self.path)
        self.path.rename(self.target)

        def undo() -> None:
            self.target.rename(self.path)
            if was_there:
                self.target.mkdir()

        self._undo = undo

    def _replace(self) -> None:
        link_foreign_files(self.target, self.path)
        force_to_disk(self.path)
        if exchange(self.path, self.target):
            self._old = self.path
            self._undo = lambda: exchange(self.path, self.target)
            return
        old = self.target.parent / self.path.name.replace(TEMPORARY_PREFIX, PREVIOUS_PREFIX, 1)
        self.target.rename(old)
        self._undo = lambda: old.rename(self.target)
        self.path.rename(self.target)
        self._old = old
        self._undo = lambda: (self.target.rename(self.path), old.rename(self.target))

    def _move_in(self) -> None:
        """Fill a folder that somebody made before; the manifest comes last, and makes the checkpoint of it."""
        moved = list[str]()
        self._undo = lambda: [(self.target / name).replace(self.path / name) for name in reversed(moved)]
        for name in sorted(files_below(self.path), key=lambda name: name == MANIFEST_NAME):
            if name == MANIFEST_NAME:
                for folder in folders_of(moved):
                    force_to_disk(self.target / folder)
            (self.target / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).replace(self.target / name)
            moved.append(name)
        force_to_disk(self.target)
        self._old = self.path


def is_under_way(path: Path) -> bool:
    """Whether this process is saving in the temporary folder ``path``."""
    return path in _under_way


def check_target(target: Path) -> None:
    """Refuse a place that cannot become a checkpoint's folder.

    Raises:
        ConfigError: If it is a file, or the working directory or one around it, or a mount point with a checkpoint.
    """
    if target.exists() and not target.is_dir():
        raise ConfigError(f"The checkpoint's folder `{target}` is a file. Choose another name.")
    if Path.cwd().is_relative_to(target):
        raise ConfigError(
            f"`{target}` is the working directory or one around it; a checkpoint needs a folder of its own."
        )
    if target.is_mount() and holds_checkpoint(target):
        raise ConfigError(
            f"`{target}` is a mount point and holds a checkpoint, which cannot be replaced in one step. "
            f"Save to a folder in it, such as `{target / 'checkpoint'}`."
        )


def holds_checkpoint(folder: Path) -> bool:
    """Whether ``folder`` has any file of a checkpoint in it."""
    return any(is_checkpoint_file(path.name) for path in folder.iterdir())


def link_foreign_files(source: Path, target: Path) -> None:
    """Let the files in ``source`` that belong to no checkpoint be in ``target`` too, copied only where they must be."""
    known = set[str]()
    if has_manifest(source):
        try:
            known = {entry.name for entry in read_manifest(source).files}
        except CheckpointError:
            known = set()  # a damaged manifest tells nothing; names do
    for name in files_below(source):
        if name in known or is_checkpoint_file(name) or (target / name).exists():
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source / name, target / name, follow_symlinks=False)
        except OSError:  # not every file system can
            shutil.copy2(source / name, target / name, follow_symlinks=False)


def name_of_displaced(path: Path) -> str:
    """Return the name that a checkpoint had before it was put aside for its successor."""
    return path.name.removeprefix(PREVIOUS_PREFIX).rsplit("-", 2)[0]


def displaced_in(folder: Path) -> list[Path]:
    """Return the checkpoints in ``folder`` that lost their name to a successor which never came."""
    put_aside = [path for path in folder.iterdir() if path.name.startswith(PREVIOUS_PREFIX) and path.is_dir()]
    return [path for path in put_aside if not (folder / name_of_displaced(path)).exists()]


def _is_empty(folder: Path) -> bool:
    return next(folder.iterdir(), None) is None
