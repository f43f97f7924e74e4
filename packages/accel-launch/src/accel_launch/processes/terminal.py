"""Lend the terminal to the process group of the run, as a shell does, so that it can read the keyboard."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

from accel_launch.processes.signals import blocked


def lend_terminal(group: int) -> LentTerminal | None:
    """Make ``group`` the one that reads the keyboard and gets Ctrl-C; None without a terminal of ours to lend.

    If standard input is something else, or we are in the background, the group gets it once it stops for want of it.
    """
    if os.name != "posix" or (descriptor := controlling_terminal()) is None:
        return None
    terminal = LentTerminal(descriptor, group)
    if sys.__stdin__ is not None and not sys.__stdin__.closed and sys.__stdin__.isatty():
        terminal.lend()
    return terminal


def controlling_terminal() -> int | None:
    """Return a new descriptor of the terminal that the session of this process has; None without one."""
    try:
        return os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
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

    def close(self) -> None:
        """Take it back for good."""
        self.take_back()
        os.close(self._descriptor)

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
        # The kernel stops a background process that asks for this otherwise; the terminal may be closed meanwhile.
        with blocked([signal.SIGTTOU]), suppress(OSError):
            os.tcsetpgrp(self._descriptor, group)
