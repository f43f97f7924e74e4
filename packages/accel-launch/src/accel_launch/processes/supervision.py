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
from accel_launch.processes.ending import describe_ending
from accel_launch.processes.relay import Relay, relays_of_this_process, take_over_streams
from accel_launch.processes.signals import (
    FORWARDED_SIGNALS,
    RemoteSignals,
    blocked,
    clear_events,
    signals_as_events,
)
from accel_launch.processes.supervisor import RunEnding, Supervisor
from accel_launch.processes.terminal import LentTerminal, lend_terminal
from accel_state.errors import LaunchError, NotAvailableError

_CHUNK = 65536


# Why: docs/decisions/0018-one-supervisor-for-all-ranks.md
def run_processes(
    plans: Sequence[ProcessPlan],
    *,
    host_environ: Mapping[str, str],
    grace_period_s: float = 30.0,
    prefixes: Sequence[str] | None = None,
    orders: Sequence[bytes] | None = None,
    remote_signals: RemoteSignals | None = None,
    restarts: Restarts = NO_RESTARTS,
) -> RunEnding:
    """Run the processes of ``plans`` in a process group of their own and wait until all have ended.

    SIGINT, SIGTERM and SIGHUP that reach this process are passed on to the whole group, and to children that have
    left it; SIGUSR1 and SIGUSR2, which mean what the children take them for, to the children alone. After one of
    the first three, all that the run has started has ``grace_period_s`` seconds before it is killed, programs that
    the children started among it; a second SIGINT kills it at once. Once a child fails, the others get a SIGTERM and
    the same time. Only what a run that succeeded has left in the background goes on. On Linux all of this holds for
    processes in sessions of their own, too, and nothing of a run outlives this process if it is killed.

    A terminal is lent to the children: they can read the keyboard, and Ctrl-C and Ctrl-Z work as without us. What
    they write is passed on at once; of several children in whole lines, each after its entry in ``prefixes``, if
    given, in which ``${rank}`` stands for the rank. Children with ``orders`` get those, and signals as lines, through
    their standard input (see `Child`), and no terminal. ``remote_signals`` is a further source of signals; at its end
    the run is killed. ``restarts`` says whether all processes start again after one of them has failed; a signal that
    ends the run ends that, too.

    Where ``plans`` have functions, the processes have no terminal either, and what they write goes through
    `sys.stdout` and `sys.stderr` of this one.

    In a thread other than the main one nothing is heard of signals to this process.

    Raises:
        NotAvailableError: On Windows, which cannot fork.
        LaunchError: If the supervisor is killed; what it has started is, too.
        OSError: If a process cannot be started, as in a folder that does not exist.
    """

    require_fork("A launch")

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

    relays = relays_of_this_process() if any(plan.function is not None for plan in plans) else ()
    pending: list[int] = []
    with signals_as_events(pending.append) as events, blocked(FORWARDED_SIGNALS) as blocked_before:
        guard_end, supervisor_end = socket.socketpair()
        with warnings.catch_warnings():
            # Python warns where there are other threads: the fork may find their locks taken. It needs none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            guard_end.close()
            if relays:
                take_over_streams(*relays)
            _become_supervisor(supervise, supervisor_end)
        supervisor_end.close()
        for relay in relays:
            relay.started()
        with guard_end:
            guard = _Guard(pid, guard_end, pending, remote_signals, relays)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)
            outcome = guard.watch(events, lends_terminal=orders is None and not relays)
    if isinstance(outcome, OSError):
        raise outcome
    return outcome


def require_fork(what: str) -> None:
    """Raise ``NotAvailableError``, which names ``what`` cannot be done, where processes cannot be forked."""
    if not hasattr(os, "fork"):
        raise NotAvailableError(
            f"{what} needs processes that can be forked, which Windows cannot do. Start one process by "
            "`python script.py`, or work in WSL2, where everything runs as on Linux."
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
        relays: Sequence[Relay],
    ) -> None:
        self._pid = pid  # also the number of its process group
        self._supervisor = supervisor
        self._pending = pending
        self._remote = remote
        self._relays = relays
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
                for relay in self._relays:
                    selector.register(relay, selectors.EVENT_READ)
                while self._return_code is None:
                    ready = {key.fileobj for key, _ in selector.select()}
                    clear_events(events)
                    if self._remote in ready and not self._hear_remote():
                        selector.unregister(self._remote)
                    for relay in self._relays:
                        relay.pump()
                    self._pass_on_signals()
                    has_ended = self._supervisor in ready and not self._hear_supervisor()
                    self._look_after_supervisor(has_ended=has_ended)
            for relay in self._relays:
                while relay.pump():
                    pass
        finally:
            for relay in self._relays:
                relay.close()
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
