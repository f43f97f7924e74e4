"""A folder held by a living process, as others on the machine can tell."""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path
from types import ModuleType

try:
    _fcntl: ModuleType | None = importlib.import_module("fcntl")
except ImportError:  # not on Windows
    _fcntl = None

STALE_AFTER_S = 24 * 3600.0
"""Where locks do not work, a folder that nothing was added to for so long is nobody's."""
FRESH_S = 5.0
"""A younger folder is let alone: its owner may be just about to hold it."""


class FolderLock:
    """Hold a folder until `release`, or until this process ends in whatever way."""

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = None
        if _fcntl is None:
            return
        self._descriptor = os.open(folder, os.O_RDONLY)
        try:
            _fcntl.flock(self._descriptor, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        except OSError:  # some network file systems lock no folders; see `is_abandoned`
            self.release()

    def release(self) -> None:
        """Let go."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def is_abandoned(folder: Path, *, now_s: float | None = None) -> bool:
    """Whether the process that held ``folder`` is gone."""
    age_s = (time.time() if now_s is None else now_s) - folder.stat().st_mtime
    if age_s < FRESH_S:
        return False
    if _fcntl is None:
        return age_s > STALE_AFTER_S
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _fcntl.flock(descriptor, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return age_s > STALE_AFTER_S
    finally:
        os.close(descriptor)
    return True
