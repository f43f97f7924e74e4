"""Run child processes and own them: their group, their signals, their terminal, their output, their end."""

from __future__ import annotations

import itertools
import os
import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from accel_launch.plan import ProcessPlan
from accel_launch.processes.child import Child, ChildEnding
from accel_launch.processes.memory_kills import counter_files, num_memory_kills
from accel_launch.processes.output import Channel
from accel_launch.processes.signals import ENDING_SIGNALS, clear_events, signals_as_events
from accel_launch.processes.terminal import controlling_terminal, give_terminal

# How long the rest of a line is waited for.
_PATIENCE_S = 0.1


@dataclass(frozen=True, slots=True)
class RunEnding:
    """How a run ended: each child in the order given, the signal that was passed on to them, if any.

    ``num_memory_kills`` counts what the kernel killed for want of memory meanwhile.
    """

    children: tuple[ChildEnding, ...]
    interrupted_by: int | None = None
    num_memory_kills: int = 0


def run_processes(
    plans: Sequence[ProcessPlan],
    *,
    host_environ: Mapping[str, str],
    grace_period_s: float = 30.0,
    prefixes: Sequence[str] | None = None,
    orders: Sequence[bytes] | None = None,
) -> RunEnding:
    """Run the processes of ``plans`` in a process group of their own and wait until all have ended.

    SIGINT, SIGTERM and SIGHUP that reach this process are passed on, as are SIGUSR1 and SIGUSR2, which mean what
    the children take them for. After the first three the children have
    ``grace_period_s`` seconds before the whole group is killed; a second SIGINT kills it at once. Once a
    child fails, the others get a SIGTERM and the same time. After a failure or an interruption, what is left
    of the group is killed. On Linux the kernel kills the children if this process dies. A terminal is lent to
    the children: they can read the keyboard, and Ctrl-C and Ctrl-Z work as without us. What they write is
    passed on at once; of several children in whole lines, each after its entry in ``prefixes``, if given.
    Children with ``orders`` get those, and signals as lines, through their standard input (see `Child`).

    Must be called from the main thread, on POSIX.
    """
    children = [
        Child(plan, prefix=prefix or "", is_by_line=len(plans) > 1, orders=text)
        for plan, prefix, text in itertools.zip_longest(plans, prefixes or (), orders or ())
    ]
    return _Supervision(children, grace_period_s=grace_period_s).run(host_environ)


class _Supervision:
    def __init__(self, children: Sequence[Child], *, grace_period_s: float) -> None:
        self._children = children
        self._grace_period_s = grace_period_s
        self._group: int | None = None
        self._terminal: int | None = None
        self._pending_signals: list[int] = []
        self._interrupted_by: int | None = None
        self._deadline: float | None = None
        self._selector = selectors.DefaultSelector()

    def run(self, host_environ: Mapping[str, str]) -> RunEnding:
        counters = counter_files()
        kills_before = num_memory_kills(counters)
        with self._selector, signals_as_events(self._pending_signals.append) as events:
            self._selector.register(events, selectors.EVENT_READ)
            self._terminal = controlling_terminal()
            try:
                self._start(host_environ)
                while any(child.is_running for child in self._children):
                    self._step(events)
            except BaseException:
                self._kill_group()
                for child in self._children:
                    child.wait_for_end()
                raise
            finally:
                self._take_terminal_back()
            if self._interrupted_by is not None or any(child.has_failed for child in self._children):
                self._kill_group()
            for child in self._children:
                child.close()
        endings = tuple(child.ending() for child in self._children)
        return RunEnding(endings, self._interrupted_by, num_memory_kills(counters) - kills_before)

    def _start(self, host_environ: Mapping[str, str]) -> None:
        for child in self._children:
            child.start(host_environ, group=self._group or 0)
            if self._group is None:
                self._group = child.pid
                self._lend_terminal()
            for channel in child.output.channels:
                self._selector.register(channel.reader, selectors.EVENT_READ, channel)

    def _step(self, events: int) -> None:
        ready = self._selector.select(self._time_left_s())
        if not ready:
            for child in self._children:
                child.output.flush()
        clear_events(events)
        self._handle_signals()
        # Ends come before lines: a rank that says it lost another must not look like the one that failed first.
        self._poll_children()
        for key, _ in ready:
            if key.data is not None:
                self._pump(key.data)
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._kill_group()
            self._deadline = None

    def _time_left_s(self) -> float | None:
        has_pending = any(child.output.has_pending for child in self._children)
        patience_s = _PATIENCE_S if has_pending else None
        if self._deadline is None:
            return patience_s
        left_s = max(0.0, self._deadline - time.monotonic())
        return left_s if patience_s is None else min(left_s, patience_s)

    def _pump(self, channel: Channel) -> None:
        reader = channel.reader
        channel.pump()
        if not channel.is_open:
            self._selector.unregister(reader)

    def _poll_children(self) -> None:
        for child in self._children:
            had_ended = not child.is_running
            stop_signal = child.poll()
            if stop_signal is not None:
                self._on_child_stopped(stop_signal)
            if child.has_failed and not had_ended:
                self._end_others()

    def _end_others(self) -> None:
        if self._deadline is None and any(child.is_running for child in self._children):
            self._deadline = time.monotonic() + self._grace_period_s
            for child in self._children:
                child.ask_to_end(signal.SIGTERM)

    def _handle_signals(self) -> None:
        while self._pending_signals:
            signum = self._pending_signals.pop(0)
            if signum == self._interrupted_by == signal.SIGINT:
                self._kill_group()
                continue
            if signum in ENDING_SIGNALS:
                self._interrupted_by = signum
                self._deadline = time.monotonic() + self._grace_period_s
            for child in self._children:
                child.send(signum)

    def _kill_group(self) -> None:
        if self._group is None:
            return
        try:
            os.killpg(self._group, signal.SIGKILL)
        except ProcessLookupError:  # nothing is left of it
            return

    def _on_child_stopped(self, stop_signal: int) -> None:
        """Stop with the child, as one job, and continue with it; or give it the terminal it stopped for."""
        if self._terminal is None or self._group is None:
            return  # no shell is watching: whoever stopped the child will continue it
        wants_terminal = stop_signal in (signal.SIGTTIN, signal.SIGTTOU)
        if not (wants_terminal and os.tcgetpgrp(self._terminal) == os.getpgrp()):
            self._take_terminal_back()
            os.killpg(os.getpgrp(), signal.SIGTSTP)  # the shell takes over here, until `fg` or `bg`
        self._lend_terminal()
        os.killpg(self._group, signal.SIGCONT)

    def _lend_terminal(self) -> None:
        if self._terminal is not None and os.tcgetpgrp(self._terminal) == os.getpgrp():
            assert self._group is not None
            give_terminal(self._terminal, self._group)

    def _take_terminal_back(self) -> None:
        if self._terminal is not None and os.tcgetpgrp(self._terminal) == self._group:
            give_terminal(self._terminal, os.getpgrp())
