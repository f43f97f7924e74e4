"""Files inside a checkpoint's folder: only plain ones, found by plain names, and forced to disk when written."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

from accel_state.errors import CheckpointError


def is_plain_name(name: object) -> bool:
    """Whether ``name`` leads to a file inside the folder, by every system's rules; subfolders by `/`."""
    if not isinstance(name, str) or not name or "\\" in name or "\0" in name:
        return False
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    if posix.is_absolute() or windows.drive or windows.root or ".." in posix.parts:
        return False
    return str(posix) == name and name != "."


def regular_file(folder: Path, name: str) -> Path:
    """Return the path of a file of a checkpoint.

    A link is followed in the cache of the Hugging Face Hub only, from ``snapshots/<revision>`` to the ``blobs`` beside.

    Raises:
        CheckpointError: If it is missing, is reached through another symbolic link, or is no regular file.
    """
    if not is_plain_name(name):
        raise CheckpointError(f"`{name}` is not the plain name of a file in `{folder}`.")
    path = folder
    for part in PurePosixPath(name).parts:
        path = path / part
        try:
            mode = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            raise CheckpointError(f"`{name}` is missing in the checkpoint `{folder}`.") from None
        if stat.S_ISLNK(mode) and _is_of_hub_cache(path):
            mode = path.stat().st_mode
        if stat.S_ISLNK(mode):
            raise CheckpointError(
                f"`{path}` is a symbolic link; a checkpoint holds its files itself. Put the file in its place."
            )
    if not stat.S_ISREG(mode):
        raise CheckpointError(f"`{path}` is not a regular file.")
    return path


def _is_of_hub_cache(link: Path) -> bool:
    """Whether a link leads from a snapshot to a file of the same repository."""
    repositories = [folder.parent for folder in link.parent.resolve().parents if folder.name == "snapshots"]
    target = link.resolve()
    return target.is_file() and any(target.parent == repository / "blobs" for repository in repositories)


def files_below(folder: Path) -> Iterator[str]:
    """Yield the names of all files in ``folder`` and its subfolders, in order; links are not followed."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False):
            yield from (f"{entry.name}/{name}" for name in files_below(Path(entry.path)))
        else:
            yield entry.name


def folders_of(names: Iterable[str]) -> list[str]:
    """Return the folders that lead to files of these names, inner ones before those around them; `.` is the last."""
    folders = {str(folder) for name in names for folder in PurePosixPath(name).parents}
    return sorted(folders, key=lambda folder: (-len(PurePosixPath(folder).parts), folder))


def make_durably(folder: Path) -> None:
    """Make a folder and those around it such that they survive a power cut; nothing is done where it is there."""
    missing = [folder] if not folder.exists() else []
    while missing and not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        force_to_disk(made.parent)


def force_to_disk(path: Path) -> None:
    """Return once the file or folder at ``path`` would survive a power cut."""
    if os.name != "posix" and path.is_dir():
        return  # Windows opens no folders; its renames are journalled.
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
