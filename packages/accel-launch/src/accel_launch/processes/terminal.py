"""Lend the terminal to the process group of the run, as a shell does, so that it can read the keyboard."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def controlling_terminal() -> int | None:
    """Return the descriptor of the terminal that this process is in the foreground of; None without one."""
    if os.name != "posix" or sys.__stdin__ is None:
        return None
    try:
        descriptor = sys.__stdin__.fileno()
        return descriptor if os.tcgetpgrp(descriptor) == os.getpgrp() else None
    except (OSError, ValueError):  # not a terminal, not ours, or closed
        return None


def give_terminal(descriptor: int, process_group: int) -> None:
    """Make ``process_group`` the one that reads the keyboard and gets Ctrl-C."""
    with _ignored(signal.SIGTTOU):  # the kernel stops a background process that asks for this otherwise
        os.tcsetpgrp(descriptor, process_group)


@contextmanager
def _ignored(signum: signal.Signals) -> Iterator[None]:
    before = signal.signal(signum, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signum, before)
