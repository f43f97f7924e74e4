"""Lend the terminal to the process group of the run, as a shell does, so that it can read the keyboard."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def lend_terminal(group: int) -> LentTerminal | None:
    """Make ``group`` the one that reads the keyboard and gets Ctrl-C; None without a terminal of ours to lend."""
    descriptor = controlling_terminal()
    if descriptor is None:
        return None
    terminal = LentTerminal(descriptor, group)
    terminal.lend()
    return terminal


def controlling_terminal() -> int | None:
    """Return the descriptor of the terminal that this process is in the foreground of; None without one."""
    if os.name != "posix" or sys.__stdin__ is None:
        return None
    try:
        descriptor = sys.__stdin__.fileno()
        return descriptor if os.tcgetpgrp(descriptor) == os.getpgrp() else None
    except (OSError, ValueError):  # not a terminal, not ours, or closed
        return None


class LentTerminal:
    """A terminal and the process group that it is lent to."""

    def __init__(self, descriptor: int, group: int) -> None:
        self._descriptor = descriptor
        self._group = group

    def lend(self) -> None:
        """Give it to the group, if it is ours."""
        if self._is_of(os.getpgrp()):
            self._give(self._group)

    def take_back(self) -> None:
        """Take it, if the group has it."""
        if self._is_of(self._group):
            self._give(os.getpgrp())

    def on_stop(self, stop_signal: int) -> None:
        """Stop with the group, as one job, and continue with it; or give it the terminal that it stopped for."""
        wants_terminal = stop_signal in (signal.SIGTTIN, signal.SIGTTOU)
        if not (wants_terminal and self._is_of(os.getpgrp())):
            self.take_back()
            os.killpg(os.getpgrp(), signal.SIGTSTP)  # the shell takes over here, until `fg` or `bg`
        self.lend()
        os.killpg(self._group, signal.SIGCONT)

    def _is_of(self, group: int) -> bool:
        try:
            return os.tcgetpgrp(self._descriptor) == group
        except OSError:  # it has been closed
            return False

    def _give(self, group: int) -> None:
        with _ignored(signal.SIGTTOU):  # the kernel stops a background process that asks for this otherwise
            os.tcsetpgrp(self._descriptor, group)


@contextmanager
def _ignored(signum: signal.Signals) -> Iterator[None]:
    before = signal.signal(signum, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signum, before)
