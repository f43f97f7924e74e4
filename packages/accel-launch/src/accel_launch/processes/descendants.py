"""What a run consists of, besides the processes that were started for it: what those have started."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

_PR_SET_CHILD_SUBREAPER = 36
_ADOPTS = sys.platform == "linux"


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none is lost; on Linux only."""
    if not _ADOPTS:
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def rest_of_run() -> list[psutil.Process]:
    """Return the descendants of this process; where it adopts no orphans, all other processes of its group."""
    import psutil

    if _ADOPTS:
        return psutil.Process().children(recursive=True)
    return [
        process for process in psutil.process_iter() if process.pid != os.getpid() and _is_in_group(process)
    ]


def kill(processes: Iterable[psutil.Process]) -> None:
    """Send each a SIGKILL, if it has not ended by now."""
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def signal_jobs(processes: Iterable[psutil.Process], signum: int) -> None:
    """Send a signal to the process groups of our session beside our own, as ``timeout`` and ``bash -m`` make them.

    The first process of such a group gets it: it is the program, or passes it on, as ``timeout`` does. A session of
    its own is left alone: a service that has to finish its work.
    """
    own_group, own_session = os.getpgrp(), os.getsid(0)
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            is_first_of_group = os.getpgid(process.pid) == process.pid != own_group
            if is_first_of_group and os.getsid(process.pid) == own_session:
                os.kill(process.pid, signum)


def _is_in_group(process: psutil.Process) -> bool:
    try:
        return os.getpgid(process.pid) == os.getpgrp()
    except (ProcessLookupError, PermissionError):  # it has ended, or is none of ours
        return False
