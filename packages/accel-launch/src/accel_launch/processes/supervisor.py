"""The process that starts the children of a run and sees to their end (see `supervision`)."""

from __future__ import annotations

import itertools
import os
import selectors
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from accel_launch.plan import ProcessPlan
from accel_launch.processes.child import Child, ChildEnding
from accel_launch.processes.descendants import adopt_orphans, kill, rest_of_run
from accel_launch.processes.memory_kills import counter_files, num_memory_kills
from accel_launch.processes.output import Channel
from accel_launch.processes.signals import (
    ENDING_SIGNALS,
    FORWARDED_SIGNALS,
    clear_events,
    send_to_own_group,
    signals_as_events,
)

# How long the rest of a line is waited for.
_PATIENCE_S = 0.1
# How often it is looked whether anything is left of a run whose children have ended.
_LOOK_INTERVAL_S = 0.1
_KILL_INTERVAL_S = 0.005
_CHUNK = 4096


@dataclass(frozen=True, slots=True)
class RunEnding:
    """How a run ended: each child in the order given, the signal that ended it, if one did.

    ``num_memory_kills`` counts what the kernel killed for want of memory meanwhile.
    """

    children: tuple[ChildEnding, ...]
    interrupted_by: int | None = None
    num_memory_kills: int = 0


class Supervisor:
    """Runs the processes of ``plans`` in the process group of this process, which is to be its alone.

    What comes through ``guard`` are numbers of signals, one byte each; its end means that the run is to be killed.
    A signal for this process itself is taken for one to the whole group, such as a terminal sends.
    """

    def __init__(
        self,
        plans: Sequence[ProcessPlan],
        *,
        grace_period_s: float,
        prefixes: Sequence[str] | None,
        orders: Sequence[bytes] | None,
        guard: socket.socket,
    ) -> None:
        self._children = [
            Child(plan, prefix=prefix or "", is_by_line=len(plans) > 1, orders=text)
            for plan, prefix, text in itertools.zip_longest(plans, prefixes or (), orders or ())
        ]
        self._grace_period_s = grace_period_s
        self._guard = guard
        self._signals_of_group: list[int] = []
        self._interrupted_by: int | None = None
        self._interrupted_from: str | None = None
        self._deadline: float | None = None
        self._selector = selectors.DefaultSelector()

    def run(self, host_environ: Mapping[str, str]) -> RunEnding:
        """Start the processes, wait until all have ended, and return how.

        Raises:
            OSError: If one cannot be started; the others are killed.
        """
        counters = counter_files()
        kills_before = num_memory_kills(counters)
        with self._selector, signals_as_events(self._signals_of_group.append) as events:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)  # the children would inherit it
            self._selector.register(events, selectors.EVENT_READ)
            self._selector.register(self._guard, selectors.EVENT_READ)
            try:
                self._start(host_environ)
                while self._has_work():
                    self._step(events)
            except BaseException:
                self._kill()
                raise
            for child in self._children:
                child.close()
        endings = tuple(child.ending() for child in self._children)
        return RunEnding(endings, self._interrupted_by, num_memory_kills(counters) - kills_before)

    def _start(self, host_environ: Mapping[str, str]) -> None:
        for child in self._children:
            child.start(host_environ)
            for channel in child.output.channels:
                self._selector.register(channel.reader, selectors.EVENT_READ, channel)
        adopt_orphans()

    def _has_work(self) -> bool:
        if any(child.is_running for child in self._children):
            return True
        if self._interrupted_by is None and not any(child.has_failed for child in self._children):
            return False  # what it has left in the background may go on
        if self._deadline is None:
            self._kill()
        return bool(rest_of_run())

    def _step(self, events: int) -> None:
        ready = [
            key.fileobj if key.data is None else key.data
            for key, _ in self._selector.select(self._time_left_s())
        ]
        if not ready:
            for child in self._children:
                child.output.flush()
        clear_events(events)
        if self._guard in ready:
            self._hear_guard()
        self._hear_group()
        # Ends come before lines: a rank that says it lost another must not look like the one that failed first.
        self._reap()
        for channel in ready:
            if isinstance(channel, Channel):
                self._pump(channel)
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._kill()

    def _time_left_s(self) -> float | None:
        times_s = []
        if any(child.output.has_pending for child in self._children):
            times_s.append(_PATIENCE_S)
        if not any(child.is_running for child in self._children):
            times_s.append(_LOOK_INTERVAL_S)
        if self._deadline is not None:
            times_s.append(max(0.0, self._deadline - time.monotonic()))
        return min(times_s, default=None)

    def _pump(self, channel: Channel) -> None:
        reader = channel.reader
        channel.pump()
        if not channel.is_open:
            self._selector.unregister(reader)

    def _reap(self) -> None:
        """Take note of children that have ended; orphans that we have adopted only have to be waited for."""
        while (ended := _next_ended()) is not None:
            pid, status = ended
            for child in self._children:
                if child.pid == pid:
                    child.note_end(status)
                    if child.has_failed:
                        self._end_others()

    def _end_others(self) -> None:
        if self._deadline is None and any(child.is_running for child in self._children):
            self._deadline = time.monotonic() + self._grace_period_s
            for child in self._children:
                child.note_asked_to_end()
            self._send(signal.SIGTERM)

    def _hear_guard(self) -> None:
        signums = self._guard.recv(_CHUNK)
        if not signums:
            self._selector.unregister(self._guard)
            self._kill()
        for signum in signums:
            self._note_signal(signum, "guard")
            self._send(signum)

    def _hear_group(self) -> None:
        while self._signals_of_group:
            self._note_signal(self._signals_of_group.pop(0), "group")

    def _note_signal(self, signum: int, source: str) -> None:
        """Start the grace period, or end it for a second Ctrl-C: one signal to all processes is not two."""
        if signum not in ENDING_SIGNALS:
            return
        if (signum, source) == (signal.SIGINT, self._interrupted_from):
            self._kill()
        if signum == signal.SIGINT:
            self._interrupted_from = source
        self._interrupted_by = signum
        if self._deadline is None:
            self._deadline = time.monotonic() + self._grace_period_s

    def _send(self, signum: int) -> None:
        """Send a signal to the children, and one that ends a run to all that is in their group."""
        is_for_group = signum in ENDING_SIGNALS and not any(child.takes_orders for child in self._children)
        for child in self._children:
            if not (is_for_group and child.is_in_our_group):
                child.send(signum)
        if is_for_group:
            send_to_own_group(signum)

    def _kill(self) -> None:
        while rest := rest_of_run():
            kill(rest)
            time.sleep(_KILL_INTERVAL_S)
            self._reap()


def _next_ended() -> tuple[int, int] | None:
    """Return the number and status of a child that has ended, None if there is none at the moment."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None
