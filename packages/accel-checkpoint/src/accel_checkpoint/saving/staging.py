"""The temporary folder that a checkpoint is written to, and the atomic rename that commits it."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from accel_checkpoint.file_names import MANIFEST_NAME, TEMPORARY_PREFIX, is_checkpoint_file
from accel_checkpoint.files import files_below, folders_of, force_to_disk, make_durably, remove_folder
from accel_checkpoint.manifest import check_complete, has_manifest, read_manifest
from accel_checkpoint.process_identity import TOKEN, has_ended_by_stamp, new_token, stamp
from accel_state.errors import CheckpointError, ConfigError
from accel_state.user_warnings import warn_user

PREVIOUS_PREFIX = f"{TEMPORARY_PREFIX}previous-"
"""Prefix of a checkpoint that is being replaced, if the file system cannot exchange two folders atomically."""

FINITE_SUFFIX = "-last-finite"
"""Suffix of a finite checkpoint that was replaced by one with values that are not finite."""

STALE_AFTER_S = 24 * 3600.0
"""Age that makes a temporary folder stale if its process cannot be looked up from this machine."""

_OURS = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}(?:removed-.+-\d+|.+-{TOKEN})")
_PREVIOUS = re.compile(rf"{re.escape(PREVIOUS_PREFIX)}(.+)-{TOKEN}")

_active: set[Path] = set()
"""The temporary folders of this process's running saves."""


class Staging:
    """A temporary folder next to the target, or inside a mount point or a parent of the working directory.

    A checkpoint becomes visible by one rename: docs/decisions/0003-checkpoints-become-visible-by-one-rename.md."""

    def __init__(self, target: Path, *, token: str) -> None:
        self.target = target
        self._is_in_place = target.is_mount() or _is_around_working_directory(target)
        around = target if self._is_in_place else target.parent
        self.path = around / temporary_name(target.name, token)
        self._token = token
        self._undo: Callable[[], object] | None = None
        self._old: Path | None = None
        self.is_saved: bool | None = False
        """Whether the target is the new checkpoint; None if that could not be undone."""

    def make(self) -> None:
        """Create the folder unless another rank has. It is not stale as long as the main process runs.

        Raises:
            ConfigError: If the target cannot become a checkpoint's folder.
        """
        check_target(self.target)
        make_durably(self.target.parent)
        _active.add(self.path)
        self.path.mkdir(exist_ok=True)

    def commit(self) -> None:
        """Rename the folder to its final name. The manifest must be in it, and everything on disk.

        An existing checkpoint of that name is replaced; other files in its folder are kept. The old checkpoint exists
        until `finalize`, and `roll_back` restores it. If this raises, nothing has changed. It does if a file that the
        manifest lists is missing, before or after the rename.
        """
        check_complete(self.path)
        try:
            self._restore_displaced()
            # POSIX renames a folder over an empty one; Windows refuses.
            if not self.target.exists() or (os.name == "posix" and not any(self.target.iterdir())):
                self._rename_to_target()
            elif holds_checkpoint(self.target) and not self._is_in_place:
                self._replace()
            else:
                self._move_files_in()
            force_to_disk(self.target.parent)  # a rename is in the parent's entries: a crash could undo it
            check_complete(self.target, token=self._token)
        except BaseException:
            self.roll_back()
            raise
        self.is_saved = True

    def finalize(self, *, keep_finite: bool = False) -> None:
        """Remove the checkpoint that `commit` replaced, or rename it if it is to be kept; release the folder."""
        old, self._old, self._undo = self._old, None, None
        if old is not None and keep_finite:
            self._keep_if_finite(old / PREVIOUS_PREFIX if self._is_in_place else old)
        if old is not None:
            remove_folder(old, ignore_errors=True)
        self.release()

    def _keep_if_finite(self, old: Path) -> None:
        if not has_manifest(old) or read_manifest(old).nonfinite:
            return
        kept = self.path.with_name(f"{self.target.name}{FINITE_SUFFIX}")
        if kept.exists():
            remove_folder(kept)
        old.rename(kept)
        warn_user(
            f"`{kept}` is the checkpoint that was replaced, the last finite one. Resume from it.",
            main_process_only=False,
        )

    def roll_back(self) -> None:
        """Undo `commit`, also if it stopped halfway."""
        if self._undo is not None:
            self.is_saved = None
            self._undo()
            self._undo = self._old = None
            self.is_saved = False

    def discard(self) -> None:
        """Remove the folder, unless it now contains the checkpoint that `commit` replaced."""
        self.release()
        if self._undo is None:
            shutil.rmtree(self.path, ignore_errors=True)

    def release(self) -> None:
        """Mark the folder as no longer in use by this process."""
        _active.discard(self.path)

    def _restore_displaced(self) -> None:
        """Rename a checkpoint back after a save was killed while replacing it; see `_replace`."""
        if self.target.exists():
            return
        for path in displaced_in(self.target.parent):
            if name_of_displaced(path) == self.target.name:
                path.rename(self.target)
                return

    # Why: docs/decisions/0003-checkpoints-become-visible-by-one-rename.md
    def _rename_to_target(self) -> None:
        had_target = self.target.exists()
        if had_target:  # an empty user-provided folder: keep its permissions
            shutil.copymode(self.target, self.path)
        _rename(self.path, self.target)

        def undo() -> None:
            _rename(self.target, self.path)
            if had_target:
                self.target.mkdir()

        self._undo = undo

    def _replace(self) -> None:
        link_foreign_files(self.target, self.path)
        force_to_disk(self.path)
        if _rename(self.path, self.target, by=exchange):
            self._old = self.path
            self._undo = lambda: _rename(self.path, self.target, by=exchange)
            return
        old = self.target.parent / f"{PREVIOUS_PREFIX}{self.target.name}-{self._token}"
        try:
            _rename(self.target, old)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            reason = f"`{self.target}` cannot be replaced: it is part of a container's image."
            raise CheckpointError(f"{reason} Save to another folder.") from error
        self._undo = lambda: _rename(old, self.target)
        _rename(self.path, self.target)
        self._old = old
        self._undo = lambda: (_rename(self.target, self.path), _rename(old, self.target))

    def _move_files_in(self) -> None:
        """Move the files into an existing user-provided folder; the manifest is last and commits the checkpoint.

        An existing checkpoint is moved aside first: it is incomplete if the process is killed in between.
        """
        moved = list[tuple[Path, Path]]()
        self._undo = lambda: [new.replace(old) for old, new in reversed(moved)]

        def move(name: str, source: Path, target: Path) -> None:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).replace(target / name)
            moved.append((source / name, target / name))

        names = sorted(files_below(self.path), key=lambda name: name == MANIFEST_NAME)
        earlier = [path.name for path in self.target.iterdir() if is_checkpoint_file(path.name)]
        for name in sorted(earlier, key=lambda name: name != MANIFEST_NAME):
            move(name, self.target, self.path / PREVIOUS_PREFIX)
        for name in names:
            if name == MANIFEST_NAME:
                for folder in folders_of(names):
                    force_to_disk(self.target / folder)
            move(name, self.path, self.target)
        force_to_disk(self.target)
        self._old = self.path


def _rename(source: Path, target: Path, *, by: Callable[[Path, Path], object] = Path.rename) -> bool:
    """Rename a folder; return whether ``by`` can. An NFS server may report an error for a rename that it has done."""
    before = source.lstat()
    try:
        return by(source, target) is not False
    except OSError:
        if not os.path.lexists(target) or not os.path.samestat(before, target.lstat()):
            raise
        return True


@contextmanager
def temporary_folder(around: Path, name: str) -> Iterator[Path]:
    """Create a temporary folder in ``around``, on the same disk, and remove it at the end of the block."""
    path = around / f"{TEMPORARY_PREFIX}{name}-{new_token()}"
    _active.add(path)
    path.mkdir()
    remove_stale_folders(around)
    try:
        yield path
    finally:
        shutil.rmtree(path)
        _active.discard(path)


def check_target(target: Path) -> None:
    """Reject a path that cannot become a checkpoint's folder.

    Raises:
        ConfigError: If it is a file, or a mount point with a checkpoint, or if its name is not UTF-8.
    """
    check_is_utf8(target)
    if target.exists() and not target.is_dir():
        raise ConfigError(f"The checkpoint's folder `{target}` is a file. Choose another name.")
    if target.is_mount() and holds_checkpoint(target):
        raise ConfigError(
            f"`{target}` is a mount point with a checkpoint, which cannot be replaced atomically. "
            f"Save to a folder in it, such as `{target / 'checkpoint'}`."
        )


def check_is_utf8(path: Path) -> None:
    """Check that a path is UTF-8, as safetensors needs.

    Raises:
        ConfigError: If it is not.
    """
    if any("\udc80" <= letter <= "\udcff" for letter in str(path)):
        raise ConfigError(
            f"The path {str(path)!a} is not UTF-8, so safetensors could not read it. Choose another."
        )


def temporary_name(name: str, token: str | int) -> str:
    """Return a temporary name for ``name``, which is shortened if needed: file systems allow 255 bytes."""
    room = 255 - len(f"{TEMPORARY_PREFIX}-{token}")
    return f"{TEMPORARY_PREFIX}{os.fsencode(name)[:room].decode(errors='ignore')}-{token}"


def holds_checkpoint(folder: Path) -> bool:
    """Whether ``folder`` contains any checkpoint file."""
    return any(is_checkpoint_file(path.name) for path in folder.iterdir())


def link_foreign_files(source: Path, target: Path) -> None:
    """Hard-link the files in ``source`` that belong to no checkpoint into ``target``; copy them if links fail."""
    known = set[str]()
    if has_manifest(source):
        try:
            known = {entry.name for entry in read_manifest(source).files}
        except CheckpointError:
            known = set()  # a damaged manifest: use the names only
    for name in files_below(source):
        if name in known or is_checkpoint_file(name) or (target / name).exists():
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source / name, target / name, follow_symlinks=False)
        except OSError:  # the file system has no hard links
            shutil.copy2(source / name, target / name, follow_symlinks=False)


def name_of_displaced(path: Path) -> str:
    """Return the original name of a checkpoint that was moved aside to be replaced; any other name unchanged."""
    return _PREVIOUS.sub(r"\1", path.name)


def displaced_in(folder: Path) -> list[Path]:
    """Return the checkpoints in ``folder`` that an interrupted save has moved aside."""
    moved_aside = [path for path in folder.iterdir() if _PREVIOUS.fullmatch(path.name) and path.is_dir()]
    return [path for path in moved_aside if not (folder / name_of_displaced(path)).exists()]


def remove_stale_folders(folder: Path) -> None:
    """Remove the temporary folders of interrupted removals, and of saves whose main process has ended.

    A process on another machine or from before the last reboot cannot be looked up; its folders are removed once they
    have not changed for a day before the last change in ``folder``, which the caller has made. Both are times of the
    file system. Only folders whose full name matches our pattern are removed, since other programs may use the prefix.
    Checkpoints that were moved aside by an interrupted save are left to `remove_old`.
    """
    displaced = set(displaced_in(folder))
    with os.scandir(folder) as entries:
        paths = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    for path in paths:
        if path in displaced or path in _active or not is_stale(path):
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


def is_stale(path: Path) -> bool:
    """Whether a folder is the temporary folder of an interrupted save or removal."""
    match = _OURS.fullmatch(path.name)
    if match is None:
        return False
    writer = match[1]
    if writer is None:  # of a removal
        return True
    has_ended = has_ended_by_stamp(writer)
    if has_ended is not None:
        return has_ended or writer == stamp()
    try:
        age_s = path.parent.stat().st_mtime - path.stat().st_mtime
    except FileNotFoundError:
        return False
    return age_s > STALE_AFTER_S


def _is_around_working_directory(folder: Path) -> bool:
    try:
        return Path.cwd().is_relative_to(folder)
    except FileNotFoundError:  # it has been deleted, and is in no folder any more
        return False


_AT_FDCWD = -100  # in <fcntl.h>: relative paths start at the working directory
_RENAME_EXCHANGE = 2  # in <linux/fs.h>


def exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two folders on one file system, atomically for every reader.

    Returns:
        False if the operating system or the file system does not support it.
    """
    if not sys.platform.startswith("linux"):
        return False
    # `os` lacks it, and two calls of `os.rename` have a moment at which a kill leaves no checkpoint under its name.
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:  # glibc has it since 2.28
        return False
    if rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV):
        return False
    raise OSError(number, os.strerror(number), str(first), None, str(second))
