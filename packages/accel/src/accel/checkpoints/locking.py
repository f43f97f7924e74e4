"""A folder held by a living process, as others on the machine can tell."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

try:
    _fcntl: ModuleType | None = importlib.import_module("fcntl")
except ImportError:  # not on Windows
    _fcntl = None

STALE_AFTER_S = 24 * 3600.0
"""Where locks do not work, a folder that nothing was added to for so long is nobody's."""


PATIENCE_S = 1.0
"""How long to wait for a folder that somebody has alone, which takes a few system calls."""


class FolderLock:
    """Hold a folder, together with others who do, until `release`, or until this process ends in whatever way."""

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = None
        if _fcntl is None:
            return
        self._descriptor = os.open(folder, os.O_RDONLY)
        end_s = time.monotonic() + PATIENCE_S
        while _try_lock(self._descriptor, _fcntl.LOCK_SH) is False and time.monotonic() < end_s:
            time.sleep(0.001)

    def release(self) -> None:
        """Let go."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def make_and_hold(folder: Path) -> FolderLock:
    """Make a folder unless it is there, and hold it; nobody ever meets it without a holder.

    While it is made, the folder around it is held too, which `alone_in` waits for.
    """
    around = FolderLock(folder.parent)
    try:
        folder.mkdir(exist_ok=True)
        return FolderLock(folder)
    finally:
        around.release()


@contextmanager
def alone_in(folder: Path) -> Iterator[bool]:
    """Give whether, for the body, nobody is just making a folder in ``folder``; True where locks do not work."""
    if _fcntl is None:
        yield True
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield _try_lock(descriptor, _fcntl.LOCK_EX) is not False
    finally:
        os.close(descriptor)


def is_abandoned(folder: Path, *, now_s: float | None = None) -> bool:
    """Whether the processes that held ``folder`` are gone; to be asked inside of `alone_in`."""
    try:
        if _fcntl is not None:
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                is_free = _try_lock(descriptor, _fcntl.LOCK_EX)
            finally:
                os.close(descriptor)
            if is_free is not None:
                return is_free
        age_s = (time.time() if now_s is None else now_s) - folder.stat().st_mtime
    except OSError:  # it has just gone, or is not to be read by us
        return False
    return age_s > STALE_AFTER_S


def _try_lock(descriptor: int, kind: int) -> bool | None:
    """Lock an open folder if nobody is in the way; None where locks do not work, as on some network file systems."""
    assert _fcntl is not None
    try:
        _fcntl.flock(descriptor, kind | _fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
