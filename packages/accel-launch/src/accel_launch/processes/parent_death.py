"""Run a program that the kernel kills as soon as its parent is gone.

This file is run by path, with ``python -I -S``, as the first step of every process of a run, so it imports
little and starts in about ten milliseconds: ``parent_death.py PARENT_PID PROGRAM ARGUMENTS...``. A
``PARENT_PID`` of 0 stands for whoever starts it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def tied_to_parent(argv: Sequence[str], *, parent_pid: int) -> tuple[str, ...]:
    """Return a command that runs ``argv``, but no longer than process ``parent_pid``, which must start it.

    Only Linux can do this; elsewhere the command comes back as it is.
    """
    if sys.platform != "linux":
        return tuple(argv)
    return (sys.executable, "-I", "-S", __file__, str(parent_pid), *argv)


def tied_to_starter(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command that runs ``argv``, but no longer than the process that will start it."""
    return tied_to_parent(argv, parent_pid=0)


def end_with_parent(parent_pid: int) -> None:
    """Let the kernel kill this process with its parent, which is ``parent_pid`` if that is not 0; on Linux only."""
    if sys.platform != "linux":
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent_pid not in (0, os.getppid()):  # it died before the call above
        os._exit(128 + signal.SIGKILL)


def main(arguments: Sequence[str]) -> int:
    """Tie this process to its parent and turn into the program in ``arguments``; return only on failure."""
    parent_pid, program = int(arguments[0]), list(arguments[1:])
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during this step is not worth a traceback
    end_with_parent(parent_pid)
    try:
        os.execvp(program[0], program)  # noqa: S606 - no shell is what we want
    except OSError as error:
        # the exit codes by which shells tell "not found" from "found, but cannot be run"
        sys.stderr.write(f"error: Cannot run `{program[0]}`: {error.strerror}.\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
