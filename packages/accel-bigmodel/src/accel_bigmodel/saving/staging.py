"""Files that appear whole or not at all: written beside their place, forced to disk, then renamed."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = ".saving-"


@contextmanager
def staging_folder(folder: Path) -> Iterator[Path]:
    """Give a fresh folder inside ``folder`` (so on the same disk), removed with what is left in it.

    Those that killed processes of this machine left behind are removed first.
    """
    _remove_abandoned(folder)
    path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{socket.gethostname()}-{os.getpid()}-", dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def force_to_disk(path: Path) -> None:
    """Return once the file or folder at ``path`` would survive a power cut."""
    if path.is_dir() and os.name != "posix":
        return  # Windows opens no folders; its renames are journalled.
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(staged: Path, names: Sequence[str], *, manifest: str) -> None:
    """Move the complete files ``names`` from ``staged`` into the folder around it.

    Where ``manifest`` is among them it comes last. An older one stays until then, unless new files replace some that
    it names: then it goes first, so that it never names a mixture of old and new files.
    """
    folder = staged.parent
    for name in names:
        force_to_disk(staged / name)
    if manifest in names and any((folder / name).exists() for name in names if name != manifest):
        (folder / manifest).unlink(missing_ok=True)
        force_to_disk(folder)
    for name in names:
        if name != manifest:
            (staged / name).replace(folder / name)
    force_to_disk(folder)
    if manifest in names:
        (staged / manifest).replace(folder / manifest)
        force_to_disk(folder)


def _remove_abandoned(folder: Path) -> None:
    for path in folder.glob(f"{_PREFIX}{socket.gethostname()}-*-*"):
        pid = path.name.removeprefix(f"{_PREFIX}{socket.gethostname()}-").partition("-")[0]
        if pid.isdecimal() and not _is_running(int(pid)):
            # Another process may be tidying up the same folder.
            with suppress(FileNotFoundError):
                shutil.rmtree(path)


def _is_running(pid: int) -> bool:
    if os.name != "posix":
        return True  # There, signal 0 would end the process instead of asking for it.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
