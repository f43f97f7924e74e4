"""The sessions that this process has started: children which lead one of their own, as torch's agent starts ranks."""

from __future__ import annotations

import os
from pathlib import Path
from types import FrameType

_PROCESSES = Path("/proc")


def own_sessions() -> tuple[int, ...]:
    """Return the process numbers of this process's children that lead a session; on Linux only, elsewhere none."""
    found = []
    for folder in _PROCESSES.glob("[0-9]*"):
        try:
            # The name of the program, in parentheses, may hold anything; state, parent, group, session follow it.
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        if int(fields[1]) == os.getpid() and fields[3] == folder.name:
            found.append(int(folder.name))
    return tuple(found)


def pass_on_to_sessions(signum: int, frame: FrameType | None) -> None:
    """Send a signal to each of them; a handler for `signal.signal`.

    It runs in the main thread. If that also waits for the children, their numbers cannot be others' by now.
    """
    for pid in own_sessions():
        os.kill(pid, signum)
