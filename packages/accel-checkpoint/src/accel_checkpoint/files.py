"""Safe access to the files in a checkpoint's folder, and writes that survive a power cut."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO

from accel_state.errors import CheckpointError


def is_plain_name(name: object) -> bool:
    """Whether ``name`` is a relative path inside the folder on every operating system, separated by `/`."""
    return isinstance(name, str) and _is_plain_name(name)


@lru_cache(maxsize=1024)
def _is_plain_name(name: str) -> bool:
    if not name or "\\" in name or "\0" in name:
        return False
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    if posix.is_absolute() or windows.drive or windows.root or ".." in posix.parts:
        return False
    return str(posix) == name and name != "."


def regular_file(folder: Path, name: str) -> Path:
    """Return the path of a file of a checkpoint.

    It may be a symbolic link to a regular file, as in the cache of the Hugging Face Hub.

    Raises:
        CheckpointError: If it is missing, in a folder that is a symbolic link, or not a regular file.
    """
    if not is_plain_name(name):
        raise CheckpointError(
            f"`{name}` is not the plain name of a file in `{folder}`. Name a file without its folder."
        )
    path = folder
    for part in name.split("/"):
        path = path / part
        try:
            mode = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            raise CheckpointError(
                f"`{name}` is missing in the checkpoint `{folder}`. "
                "Load another checkpoint, or copy this one again with all its files."
            ) from None
        if stat.S_ISLNK(mode) and path.is_file():
            mode = path.stat().st_mode
        if stat.S_ISLNK(mode):
            raise CheckpointError(
                f"`{path}` is a symbolic link, but not to a regular file. Replace it with what should be there."
            )
    check_regular(path)
    return path


def raise_read_error(path: Path, error: Exception) -> None:
    """Raise the `OSError` behind a failed read, with a hint; return if the content of the file is to blame.

    `zipfile` replaces it by an error that calls the file damaged.
    """
    cause = error if isinstance(error, OSError) else error.__context__
    if not isinstance(cause, OSError) or cause.errno in (None, errno.EINVAL, errno.ENOENT):
        return  # a damaged file leads to invalid offsets
    trace = cause.__traceback__
    if cause is error or (trace is not None and trace.tb_frame.f_globals.get("__name__") == "zipfile"):
        hint = "It may be intact: check its permissions and its disk, and load it again."
        raise OSError(cause.errno, f"`{path}` cannot be read: {cause.strerror}. {hint}") from error


@contextmanager
def naming_read_errors(path: Path) -> Iterator[None]:
    """Add the path and a hint to an error of the system; see `raise_read_error`."""
    try:
        yield
    except OSError as error:
        raise_read_error(path, error)
        raise


def check_regular(path: Path) -> None:
    """Raise a `CheckpointError` if ``path`` is a folder, a device or a pipe, which would block who opens it."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise CheckpointError(f"`{path}` is not a regular file. Replace it with the file itself.")


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it.

    Raises:
        CheckpointError: If it is not a regular file.
    """
    check_regular(path)
    with naming_read_errors(path):
        return path.open("rb")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise a `CheckpointError` if it is not readable."""
    check_regular(path)
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"`{path}` is not readable JSON: {error}. Copy or save it again.") from error


def remove_folder(folder: Path, *, ignore_errors: bool = False) -> None:
    """Remove a folder with its content, or a symbolic link to one."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=ignore_errors)


def files_below(folder: Path) -> Iterator[str]:
    """Yield the sorted names of all files in ``folder`` and its subfolders; links are not followed."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False):
            yield from (f"{entry.name}/{name}" for name in files_below(Path(entry.path)))
        else:
            yield entry.name


def folders_of(names: Iterable[str]) -> list[str]:
    """Return all parent folders of these file names, children before their parents; `.` comes last."""
    folders = {str(folder) for name in names for folder in PurePosixPath(name).parents}
    return sorted(folders, key=lambda folder: (-len(PurePosixPath(folder).parts), folder))


def make_durably(folder: Path) -> None:
    """Create a folder and its missing parents, and force them to disk; does nothing if it exists."""
    missing = [folder] if not folder.exists() else []
    while missing and not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        force_to_disk(made.parent)


def force_to_disk(path: Path) -> None:
    """Flush the file or folder at ``path`` to disk (`fsync`)."""
    if os.name != "posix" and path.is_dir():
        return  # Windows cannot open folders; its file system journals renames.
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
