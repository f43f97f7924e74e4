"""Run child processes and own them: their signals, their terminal, their output, their end.

Two processes do it. The one that calls `run_processes` is the *guard*: its PID is the one that users and schedulers
see. It forks the *supervisor*, which starts the children and is in one process group with them, so that Ctrl-C
reaches all of them at once. Each ends the run if the other is killed: the guard by SIGKILL to the group, the
supervisor when its socket to the guard ends, and the kernel kills the children with the supervisor (`parent_death`).

What they do is in two tables: an event, and the steps that follow it, in this order. If all children succeed, nothing
follows: what they have left in the background keeps running.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from accel_launch.messages import write_beside
from accel_launch.plan import ProcessPlan
from accel_launch.processes.attempt import NO_RESTARTS, Attempt, Restarts
from accel_launch.processes.child import Child, ChildEnding, counter_files, describe_ending, num_memory_kills
from accel_launch.processes.guard import Guard, GuardEvent
from accel_launch.processes.output import Channel
from accel_launch.processes.signals import (
    ENDING_SIGNALS,
    FORWARDED_SIGNALS,
    RemoteSignals,
    blocked,
    clear_events,
    signals_as_events,
)
from accel_state.errors import LaunchError, NotAvailableError

if TYPE_CHECKING:
    from accel_launch.processes.standby import Standby

_CHUNK = 4096

Event = Enum(
    "Event",
    "ENDING_SIGNAL GROUP_SIGNAL INTERRUPT_AGAIN USER_SIGNAL GUARD_GONE CHILD_FAILED LAST_FAILED NOTICE_DUE TIME_OVER",
)
# fmt: off
GUARD_STEPS: Mapping[GuardEvent, Sequence[Callable[[Guard], None]]] = {
    # a signal to this process, or a line of `remote_signals`; the end of those
    GuardEvent.SIGNALS:                (Guard.pass_signals_on,),
    GuardEvent.REMOTE_GONE:            (Guard.leave,),
    # Ctrl-Z, or a child reads a terminal that another job has
    GuardEvent.RUN_STOPPED:            (Guard.take_terminal_back, Guard.stop_with_run, Guard.lend_terminal,
                                        Guard.continue_run),
    # a child reads the terminal that this process has, as after `fg`; or one that it cannot lend
    GuardEvent.RUN_WANTS_OUR_TERMINAL: (Guard.lend_terminal, Guard.continue_run),
    GuardEvent.RUN_WANTS_A_TERMINAL:   (Guard.hang_up, Guard.continue_run),
}
SUPERVISOR_STEPS: Mapping[Event, Sequence[Callable[[Attempt, int], None]]] = {
    # SIGINT, SIGTERM or SIGHUP by the guard; to the group, whose processes have it then, as by Ctrl-C; SIGINT again
    Event.ENDING_SIGNAL:   (Attempt.note_signal, Attempt.start_grace_period, Attempt.send),
    Event.GROUP_SIGNAL:    (Attempt.note_signal, Attempt.start_grace_period, Attempt.send_outside_group),
    Event.INTERRUPT_AGAIN: (Attempt.kill,),
    # SIGUSR1 or SIGUSR2 by the guard
    Event.USER_SIGNAL:     (Attempt.send,),
    # the guard has been killed, or has left
    Event.GUARD_GONE:      (Attempt.abandon, Attempt.kill),
    # before anything else ends the run: a child fails while others run; the last one, and what it has left is killed
    Event.CHILD_FAILED:    (Attempt.start_grace_period, Attempt.end_children),
    Event.LAST_FAILED:     (Attempt.kill,),
    # two seconds after a Ctrl-C; at the end of the grace period
    Event.NOTICE_DUE:      (Attempt.give_notice,),
    Event.TIME_OVER:       (Attempt.kill,),
}
# fmt: on


@dataclass(frozen=True, slots=True)
class RunEnding:
    """How a run ended: each child of the last attempt, in the order given, and the signal that ended it, if one did.

    ``children`` is empty if a signal came before they were started. ``num_memory_kills`` counts what the kernel killed
    meanwhile because memory ran out.
    """

    children: tuple[ChildEnding, ...]
    interrupted_by: int | None = None
    num_memory_kills: int = 0


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

    def supervise() -> RunEnding:
        standby = restarts.standby(plans)
        children = partial(
            restarts.children,
            plans if standby is None else standby.plans,
            prefixes or [""] * len(plans),
            orders or [None] * len(plans),
        )
        attempt = partial(
            Attempt, grace_period_s=grace_period_s, gives_notice=remote_signals is None, standby=standby
        )
        supervisor = _Supervisor(
            children, attempt, standby, max_restarts=restarts.maximum, guard=supervisor_end
        )
        return supervisor.run(host_environ)

    pending: list[int] = []
    with signals_as_events(pending.append) as wakes, blocked(FORWARDED_SIGNALS) as blocked_before:
        guard_end, supervisor_end = socket.socketpair()
        with warnings.catch_warnings():
            # Python warns where there are other threads: the fork may find their locks taken. It needs none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            guard_end.close()
            _become_supervisor(supervise, supervisor_end)
        supervisor_end.close()
        with guard_end, contextlib.closing(Guard(pid, guard_end, pending, remote_signals)) as guard:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)
            guard.start(lends_terminal=orders is None)
            with selectors.DefaultSelector() as selector:
                for source in (wakes, guard_end, remote_signals):
                    if source is not None:
                        selector.register(source, selectors.EVENT_READ)
                while guard.return_code is None:
                    ready = {key.fileobj for key, _ in selector.select()}
                    clear_events(wakes)
                    for event in guard.events(ready):
                        for step in GUARD_STEPS[event]:
                            step(guard)
                        if event is GuardEvent.REMOTE_GONE and remote_signals is not None:
                            selector.unregister(remote_signals)
    if guard.return_code != 0:
        guard.kill_run()
        raise LaunchError(
            f"The process that supervised the run {describe_ending(guard.return_code)}; the run was ended."
        )
    outcome: RunEnding | OSError = pickle.loads(guard.answer)  # noqa: S301 - our own process wrote it
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


def _become_supervisor(supervise: Callable[[], RunEnding], guard: socket.socket) -> NoReturn:
    """Supervise, send the guard how the run ended, and end without the exit handlers of the program."""
    try:
        os.setpgid(0, 0)
        try:
            outcome: RunEnding | OSError = supervise()
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


class _Supervisor:
    """Turns what happens to the run into events, and takes the steps of each.

    What comes through ``guard`` are numbers of signals, one byte each. A signal for this process itself is taken for
    one to the whole group, such as a terminal sends.
    """

    def __init__(
        self,
        children: Callable[[int], list[Child]],
        attempt: Callable[[Sequence[Child]], Attempt],
        standby: Standby | None,
        *,
        max_restarts: int,
        guard: socket.socket,
    ) -> None:
        self._make_children = children
        self._make_attempt = attempt
        self._attempt = attempt(())
        self._standby = standby
        self._max_restarts = max_restarts
        self._num_restarts = 0
        self._guard = guard
        self._group_signals: list[int] = []
        self._interrupts: set[Event] = set()

    def run(self, host_environ: Mapping[str, str]) -> RunEnding:
        """Start the processes, wait until all have ended, start them again if that is asked for, and return how.

        Raises:
            OSError: If one cannot be started; the others are killed.
        """
        standby, counters = self._standby, counter_files()
        kills_before = num_memory_kills(counters)
        with (
            selectors.DefaultSelector() as self._selector,
            signals_as_events(self._group_signals.append) as self._wakes,
        ):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)  # the children would inherit it
            for source in (self._wakes, self._guard):
                self._selector.register(source, selectors.EVENT_READ, source)
            try:
                self._take_steps(())
                while not self._attempt.is_to_end:
                    self._attempt = self._make_attempt(self._make_children(self._num_restarts))
                    self._attempt.start(host_environ, self._selector)
                    while self._attempt.has_work:
                        self._step()
                        if standby is not None:
                            standby.look(host_environ)
                    self._attempt.close(self._selector)
                    if not self._starts_again():
                        break
                    while standby is not None and standby.is_awaited() and not self._attempt.is_to_end:
                        self._step()
            except BaseException:  # whatever ends the launcher: no rank may outlive it
                self._attempt.kill()
                raise
            finally:
                if standby is not None:
                    standby.close()
        return RunEnding(
            tuple(child.ending() for child in self._attempt.children),
            self._attempt.interrupted_by,
            num_memory_kills(counters) - kills_before,
        )

    def _starts_again(self) -> bool:
        """Whether the processes start again after a failure of one, which a line says."""
        failed = self._attempt.first_failure
        if self._attempt.is_to_end or failed is None or self._num_restarts >= self._max_restarts:
            return False
        self._num_restarts += 1
        assert failed.return_code is not None
        who = "The script" if failed.plan.rank is None else f"Rank {failed.plan.rank}"
        write_beside(
            f"{who} {describe_ending(failed.return_code)}. All ranks start again "
            f"({self._num_restarts} of {self._max_restarts})."
        )
        return True

    def _step(self) -> None:
        """Wait for what happens next, and take the steps that follow."""
        waits_s = (self._attempt.wait_s, None if self._standby is None else self._standby.wait_s)
        at_most_s = min((wait_s for wait_s in waits_s if wait_s is not None), default=None)
        ready = [key.data for key, _ in self._selector.select(at_most_s)]
        clear_events(self._wakes)
        if not ready:
            self._attempt.flush()
        self._take_steps(ready)

    def _take_steps(self, ready: Sequence[object]) -> None:
        for event, signum in self._events(ready):
            for step in SUPERVISOR_STEPS[event]:
                step(self._attempt, signum)

    def _events(self, ready: Sequence[object]) -> Iterator[tuple[Event, int]]:
        """Return what has happened, with the signal or 0, and pass on what the children wrote."""
        if self._guard in ready:
            signums = self._guard.recv(_CHUNK)
            if not signums:
                self._selector.unregister(self._guard)
                yield Event.GUARD_GONE, 0
            for signum in signums:
                is_ending = signum in ENDING_SIGNALS
                yield self._unless_again(signum, Event.ENDING_SIGNAL if is_ending else Event.USER_SIGNAL)
        while self._group_signals:
            signum = self._group_signals.pop(0)
            if signum in ENDING_SIGNALS:
                yield self._unless_again(signum, Event.GROUP_SIGNAL)
        # Ends come before lines: a rank that says it lost another must not look like the one that failed first.
        for child in self._attempt.reap():
            if child.has_failed and not self._attempt.is_ending:
                yield Event.CHILD_FAILED if self._attempt.running else Event.LAST_FAILED, 0
        for source in ready:
            if isinstance(source, Channel):
                reader = source.reader
                source.pump()
                if not source.is_open:
                    self._selector.unregister(reader)
        if self._attempt.time_left_s == 0:
            yield Event.TIME_OVER, 0
        if self._attempt.is_notice_due:
            yield Event.NOTICE_DUE, 0

    def _unless_again(self, signum: int, event: Event) -> tuple[Event, int]:
        """Return the event, or a second interrupt: one signal to all processes, which comes both ways, is not two."""
        if signum == signal.SIGINT:
            if event in self._interrupts:
                return Event.INTERRUPT_AGAIN, signum
            self._interrupts.add(event)
        return event, signum
