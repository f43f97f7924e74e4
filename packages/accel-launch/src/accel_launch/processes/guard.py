"""The side of the process that started a run: signals go from it to the supervisor, the terminal to the run."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Collection, Iterator
from enum import Enum

from accel_launch.processes.signals import TERMINAL_STOPS, RemoteSignals, blocked

_CHUNK = 65536


# What follows each is in `supervision.GUARD_STEPS`.
GuardEvent = Enum("GuardEvent", "SIGNALS REMOTE_GONE RUN_STOPPED RUN_WANTS_OUR_TERMINAL RUN_WANTS_A_TERMINAL")


class Guard:
    """What the guard knows of a run, and the steps that it takes.

    ``pid`` is the supervisor, also its process group; ``signals`` are those of this process that have not been passed
    on, to which ``remote`` adds. ``return_code`` is that of the supervisor, whose ``answer`` says how the run ended.
    """

    def __init__(
        self, pid: int, supervisor: socket.socket, signals: list[int], remote: RemoteSignals | None
    ) -> None:
        self.return_code: int | None = None
        self.answer = b""
        self._pid = pid
        self._supervisor = supervisor
        self._signals = signals
        self._remote = remote
        self._terminal: Terminal | None = None

    def start(self, *, lends_terminal: bool) -> None:
        """Make the supervisor a process group, which has the terminal if this process has the keyboard."""
        os.setpgid(self._pid, self._pid)  # it does so itself, too; whoever comes second changes nothing
        self._terminal = Terminal.of_this_session() if lends_terminal else None
        if sys.__stdin__ is not None and not sys.__stdin__.closed and sys.__stdin__.isatty():
            self.lend_terminal()

    def close(self) -> None:
        """Take the terminal back; if the run is not over, as after an exception here, wait until it is."""
        if self._terminal is not None:
            self.take_terminal_back()
            os.close(self._terminal.descriptor)
        if self.return_code is None:
            self._supervisor.close()  # which ends the run
            os.waitpid(self._pid, 0)

    def events(self, ready: Collection[object]) -> Iterator[GuardEvent]:
        """Return what has happened, by the sources that are ready."""
        has_remote = self._remote is not None and self._remote in ready
        if self._remote is not None and has_remote:
            self._signals += self._remote.take()
        if self._signals:
            yield GuardEvent.SIGNALS
        if self._remote is not None and has_remote and self._remote.has_ended:
            yield GuardEvent.REMOTE_GONE
        has_ended = self._supervisor in ready and not self._receive()
        pid, status = os.waitpid(self._pid, 0 if has_ended else os.WNOHANG | os.WUNTRACED)
        if pid and not os.WIFSTOPPED(status):
            self.return_code = os.waitstatus_to_exitcode(status)
            while self._receive():
                pass
        elif pid and self._terminal is None:
            if os.WSTOPSIG(status) in TERMINAL_STOPS:
                yield GuardEvent.RUN_WANTS_A_TERMINAL
        elif pid:
            assert self._terminal is not None
            is_wanted = os.WSTOPSIG(status) in TERMINAL_STOPS and self._terminal.is_of(os.getpgrp())
            yield GuardEvent.RUN_WANTS_OUR_TERMINAL if is_wanted else GuardEvent.RUN_STOPPED

    def _receive(self) -> bool:
        chunk = self._supervisor.recv(_CHUNK)
        self.answer += chunk
        return bool(chunk)

    def pass_signals_on(self) -> None:
        """Send the supervisor the signals that have come."""
        with contextlib.suppress(BrokenPipeError):  # the run is over
            while self._signals:
                self._supervisor.send(bytes([self._signals.pop(0)]))

    def leave(self) -> None:
        """Be gone for the supervisor, which kills the run."""
        self._supervisor.shutdown(socket.SHUT_WR)

    def lend_terminal(self) -> None:
        """Make the run the foreground process group, which reads the keyboard and gets Ctrl-C, if ours is."""
        if self._terminal is not None:
            self._terminal.pass_on(os.getpgrp(), self._pid)

    def take_terminal_back(self) -> None:
        """Make our group the foreground one, if the run's is."""
        if self._terminal is not None:
            self._terminal.pass_on(self._pid, os.getpgrp())

    def stop_with_run(self) -> None:
        """Stop as one job with the run; the shell takes over until `fg` or `bg`."""
        os.killpg(os.getpgrp(), signal.SIGTSTP)

    def kill_run(self) -> None:
        """Kill what is left of the run."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)

    def hang_up(self) -> None:
        """Send the run a SIGHUP: it would wait for a terminal forever."""
        os.killpg(self._pid, signal.SIGHUP)

    def continue_run(self) -> None:
        """Let the run continue."""
        os.killpg(self._pid, signal.SIGCONT)


class Terminal:
    """The terminal of a session, which one process group has in the foreground."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def of_this_session(cls) -> Terminal | None:
        """Return the terminal that the session of this process has; None without one."""
        try:
            return cls(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
        except OSError:
            return None

    def is_of(self, group: int) -> bool:
        """Whether ``group`` is in the foreground."""
        try:
            return os.tcgetpgrp(self.descriptor) == group
        except OSError:  # it has been closed
            return False

    def pass_on(self, group: int, to_group: int) -> None:
        """Give it to another group, if ``group`` has it."""
        if self.is_of(group):
            # The kernel stops a background process that asks for this otherwise; it may be closed meanwhile.
            with blocked([signal.SIGTTOU]), contextlib.suppress(OSError):
                os.tcsetpgrp(self.descriptor, to_group)
