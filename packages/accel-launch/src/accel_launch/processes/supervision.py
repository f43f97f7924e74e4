"""Run child processes and own them: their signals, their terminal, their output, their end.

Two processes do it. The one that calls `run_processes` is the *guard*: it has the process number that people and
schedulers know, passes signals on, and lends the terminal. It forks the *supervisor*, which starts the children and
is in one process group with them, so that it hears Ctrl-C when they do. Each ends the run if the other is killed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from accel_launch.plan import ProcessPlan
from accel_launch.processes.attempt import NO_RESTARTS, Restarts
from accel_launch.processes.child import describe_ending
from accel_launch.processes.signals import (
    FORWARDED_SIGNALS,
    RemoteSignals,
    blocked,
    clear_events,
    signals_as_events,
)
from accel_launch.processes.supervisor import RunEnding, Supervisor
from accel_state.errors import LaunchError, NotAvailableError

_CHUNK = 65536


# Why: docs/decisions/0018-one-supervisor-for-all-ranks.md
def run_processes(
    plans: Sequence[ProcessPlan],
    *,
    host_environ: Mapping[str, str],
    grace_period_s: float = 30.0,
    prefixes: Sequence[str] | None = None,
    orders: Sequence[Callable[[int], bytes]] | None = None,
    remote_signals: RemoteSignals | None = None,
    restarts: Restarts = NO_RESTARTS,
) -> RunEnding:
    """Run the processes of ``plans`` in a process group of their own and wait until all have ended.

    ============================  =================================  ==============================================
    event                         who gets it                        what follows
    ============================  =================================  ==============================================
    SIGINT, SIGTERM, SIGHUP here  the group, and children outside    after ``grace_period_s`` all of the run is killed
    SIGINT a second time          everything of the run              it is killed at once
    SIGUSR1, SIGUSR2 here         the children                       what they take it for
    Ctrl-C, Ctrl-Z at a terminal  the group (the kernel sends it)    as for SIGINT; we stop and continue with the run
    a line of ``remote_signals``  as the signal of that number here  as for that signal
    a child fails                 the other children: SIGTERM        the same grace period, then perhaps a restart
    all children succeed          nobody                             what they left in the background goes on
    ``remote_signals`` ends, we   everything of the run              it is killed at once (on Linux also in sessions
    or the supervisor are killed                                     of its own)
    ============================  =================================  ==============================================

    Children write to the screen at once, several of them in whole lines, each after its entry in ``prefixes``, in which
    ``${rank}`` stands for the rank. They have the terminal, unless ``orders`` are given, which return by the number of
    the attempt what each reads, with signals as lines, from its standard input (see `Child`). ``restarts`` says whether
    all start again after one has failed; a signal that ends the run ends that, too. In a thread other than the main
    one, signals to this process are ignored.

    Raises:
        NotAvailableError: On Windows, which cannot fork.
        LaunchError: If the supervisor is killed; what it has started is, too.
        OSError: If a process cannot be started, as in a folder that does not exist.
    """

    require_fork("A launch of several processes")

    def supervise(guard: socket.socket) -> RunEnding:
        supervisor = Supervisor(
            plans,
            grace_period_s=grace_period_s,
            prefixes=prefixes,
            orders=orders,
            restarts=restarts,
            guard=guard,
            gives_notice=remote_signals is None,
        )
        return supervisor.run(host_environ)

    pending: list[int] = []
    with signals_as_events(pending.append) as events, blocked(FORWARDED_SIGNALS) as blocked_before:
        guard_end, supervisor_end = socket.socketpair()
        with warnings.catch_warnings():
            # Python warns where there are other threads: the fork may find their locks taken. It needs none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            guard_end.close()
            _become_supervisor(supervise, supervisor_end)
        supervisor_end.close()
        with guard_end:
            guard = _Guard(pid, guard_end, pending, remote_signals)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)
            outcome = guard.watch(events, lends_terminal=orders is None)
    if isinstance(outcome, OSError):
        raise outcome
    return outcome


def require_fork(what: str) -> None:
    """Raise ``NotAvailableError``, which names ``what`` cannot be done, where processes cannot be forked."""
    if not hasattr(os, "fork"):
        raise NotAvailableError(
            f"{what} needs processes that can be forked, which Windows cannot do. Start one process, "
            "or work in WSL2, where everything runs as on Linux."
        )


def _become_supervisor(supervise: Callable[[socket.socket], RunEnding], guard: socket.socket) -> NoReturn:
    """Supervise, send the guard how the run ended, and end without the exit handlers of the program."""
    try:
        os.setpgid(0, 0)
        try:
            outcome: RunEnding | OSError = supervise(guard)
        except OSError as error:
            outcome = error
        try:
            guard.sendall(pickle.dumps(outcome))
        except BrokenPipeError:  # it has been killed
            os._exit(1)
        os._exit(0)
    finally:
        # An exception that is a mistake of ours must not climb into the program that was forked.
        sys.excepthook(*sys.exc_info())
        os._exit(1)


class _Guard:
    """The part of the caller: between its signals and its terminal, and the supervisor."""

    def __init__(
        self,
        pid: int,
        supervisor: socket.socket,
        pending: list[int],
        remote: RemoteSignals | None,
    ) -> None:
        self._pid = pid  # also the number of its process group
        self._supervisor = supervisor
        self._pending = pending
        self._remote = remote
        self._terminal: LentTerminal | None = None
        self._return_code: int | None = None
        self._answer = b""

    def watch(self, events: int, *, lends_terminal: bool) -> RunEnding | OSError:
        """Pass on signals until the supervisor has ended; return what it says of the run, or the error that it met."""
        try:
            os.setpgid(self._pid, self._pid)  # it does so itself, too; whoever comes second changes nothing
            self._terminal = lend_terminal(self._pid) if lends_terminal else None
            with selectors.DefaultSelector() as selector:
                selector.register(events, selectors.EVENT_READ)
                selector.register(self._supervisor, selectors.EVENT_READ)
                if self._remote is not None:
                    selector.register(self._remote, selectors.EVENT_READ)
                while self._return_code is None:
                    ready = {key.fileobj for key, _ in selector.select()}
                    clear_events(events)
                    if self._remote in ready and not self._hear_remote():
                        selector.unregister(self._remote)
                    self._pass_on_signals()
                    has_ended = self._supervisor in ready and not self._hear_supervisor()
                    self._look_after_supervisor(has_ended=has_ended)
        finally:
            if self._terminal is not None:
                self._terminal.close()
            if self._return_code is None:
                # An exception: the supervisor ends the run when nobody is left to talk to.
                self._supervisor.close()
                os.waitpid(self._pid, 0)
        return self._outcome(self._return_code)

    def _hear_remote(self) -> bool:
        assert self._remote is not None
        self._pending += self._remote.take()
        if self._remote.has_ended:
            self._pass_on_signals()
            self._supervisor.shutdown(socket.SHUT_WR)
        return not self._remote.has_ended

    def _hear_supervisor(self) -> bool:
        chunk = self._supervisor.recv(_CHUNK)
        self._answer += chunk
        return bool(chunk)

    def _pass_on_signals(self) -> None:
        while self._pending:
            try:
                self._supervisor.send(bytes([self._pending.pop(0)]))
            except BrokenPipeError:  # the run is over
                return

    def _look_after_supervisor(self, *, has_ended: bool) -> None:
        pid, status = os.waitpid(self._pid, 0 if has_ended else os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return
        if not os.WIFSTOPPED(status):
            self._return_code = os.waitstatus_to_exitcode(status)
        elif self._terminal is not None:
            self._terminal.on_stop(os.WSTOPSIG(status))
        elif os.WSTOPSIG(status) in (signal.SIGTTIN, signal.SIGTTOU):  # it would wait for a terminal forever
            for signum in (signal.SIGHUP, signal.SIGCONT):
                os.killpg(self._pid, signum)

    def _outcome(self, return_code: int) -> RunEnding | OSError:
        while self._hear_supervisor():
            pass
        if return_code == 0:
            outcome: RunEnding | OSError = pickle.loads(self._answer)  # noqa: S301 - our own process wrote it
            return outcome
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        raise LaunchError(
            f"The process that supervised the run {describe_ending(return_code)}; the run was ended."
        )


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
        with blocked([signal.SIGTTOU]), contextlib.suppress(OSError):
            os.tcsetpgrp(self._descriptor, group)
