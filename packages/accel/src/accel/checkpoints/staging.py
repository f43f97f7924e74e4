"""The hidden folder in which a checkpoint grows, and the one step in which it becomes visible."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from accel.checkpoints.files import files_below, force_to_disk
from accel.checkpoints.layout import MANIFEST_NAME, TEMPORARY_PREFIX, is_checkpoint_file
from accel.checkpoints.locking import FolderLock
from accel.checkpoints.manifest import has_manifest, read_manifest
from accel.checkpoints.swapping import exchange
from accel_state.errors import CheckpointError, ConfigError

PREVIOUS_PREFIX = f"{TEMPORARY_PREFIX}previous-"
"""Where a checkpoint waits for an instant while its successor takes its name, if two steps are needed."""


class Staging:
    """A folder beside the place of the checkpoint, so on the same file system.

    Args:
        target: Where the checkpoint will be.
        token: Told apart from every other save by it; the same on every rank.
    """

    def __init__(self, target: Path, *, token: str) -> None:
        self.target = target
        self.path = target.parent / f"{TEMPORARY_PREFIX}{target.name}-{token}"
        self._lock: FolderLock | None = None

    def make(self) -> None:
        """Make the folder unless another rank has."""
        self.path.mkdir(parents=True, exist_ok=True)

    def own(self) -> None:
        """Make the folder and hold it: while this process lives, nobody takes it for left over."""
        self.make()
        self._lock = FolderLock(self.path)

    def publish(self) -> None:
        """Give the folder its final name; it holds its manifest and all is on the disk.

        Where there is a checkpoint of this name already, the two change places and the old one is removed;
        files in it that belong to no checkpoint stay.
        """
        if not self.target.exists():
            self.path.rename(self.target)
            force_to_disk(self.target.parent)
        elif holds_checkpoint(self.target):
            self._replace()
        else:
            self._move_in()
        self._release()

    def discard(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _replace(self) -> None:
        link_foreign_files(self.target, self.path)
        force_to_disk(self.path)
        old = self.path
        if not exchange(self.path, self.target):
            old = self.target.parent / self.path.name.replace(TEMPORARY_PREFIX, PREVIOUS_PREFIX, 1)
            self.target.rename(old)
            self.path.rename(self.target)
        force_to_disk(self.target.parent)
        shutil.rmtree(old, ignore_errors=True)

    def _move_in(self) -> None:
        """Fill a folder that somebody made before; the manifest comes last, and makes the checkpoint of it."""
        for name in sorted(files_below(self.path), key=lambda name: name == MANIFEST_NAME):
            if name == MANIFEST_NAME:
                force_to_disk(self.target)
            (self.target / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).replace(self.target / name)
        force_to_disk(self.target)
        shutil.rmtree(self.path)


def check_target(target: Path) -> None:
    """Refuse a place that cannot become a checkpoint's folder.

    Raises:
        ConfigError: If it is a file, or the working directory or one around it.
    """
    if target.exists() and not target.is_dir():
        raise ConfigError(f"The checkpoint's folder `{target}` is a file. Choose another name.")
    if Path.cwd().is_relative_to(target):
        raise ConfigError(
            f"`{target}` is the working directory or one around it; a checkpoint needs a folder of its own."
        )


def holds_checkpoint(folder: Path) -> bool:
    """Whether ``folder`` has any file of a checkpoint in it."""
    return any(is_checkpoint_file(path.name) for path in folder.iterdir())


def link_foreign_files(source: Path, target: Path) -> None:
    """Let the files in ``source`` that belong to no checkpoint also be in ``target``, without copying them."""
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
        os.link(source / name, target / name, follow_symlinks=False)
