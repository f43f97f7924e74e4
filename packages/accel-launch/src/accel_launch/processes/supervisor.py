"""The process that starts the children of a run and sees to their end (see `supervision`)."""

from __future__ import annotations

import math
import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from accel_launch.messages import compact, write_beside
from accel_launch.plan import ProcessPlan
from accel_launch.processes.attempt import Attempt, Restarts
from accel_launch.processes.child import ChildEnding, counter_files, describe_ending, num_memory_kills
from accel_launch.processes.output import Channel
from accel_launch.processes.signals import (
    ENDING_SIGNALS,
    FORWARDED_SIGNALS,
    clear_events,
    signals_as_events,
)

# When somebody who has pressed Ctrl-C is told what the run waits for.
_NOTICE_AFTER_S = 2.0
_CHUNK = 4096


@dataclass(frozen=True, slots=True)
class RunEnding:
    """How a run ended: each child of the last attempt, in the order given, and the signal that ended it, if one did.

    ``children`` is empty if a signal came before they were started. ``num_memory_kills`` counts what the kernel killed
    meanwhile because memory ran out.
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
        orders: Sequence[Callable[[int], bytes]] | None,
        restarts: Restarts,
        guard: socket.socket,
        gives_notice: bool,
    ) -> None:
        self._standby = restarts.standby(plans)
        self._plans = plans if self._standby is None else self._standby.plans
        self._prefixes = prefixes or [""] * len(plans)
        self._orders: Sequence[Callable[[int], bytes] | None] = orders or [None] * len(plans)
        self._grace_period_s = grace_period_s
        self._restarts = restarts
        self._num_restarts = 0
        self._attempt = Attempt((), grace_period_s=grace_period_s)
        self._guard = guard
        self._is_guard_gone = False
        self._gives_notice = gives_notice
        self._notice_at: float | None = None
        self._signals_of_group: list[int] = []
        self._interrupted_by: int | None = None
        self._interrupted_from: str | None = None
        self._selector = selectors.DefaultSelector()

    def run(self, host_environ: Mapping[str, str]) -> RunEnding:
        """Start the processes, wait until all have ended, start them again if that is asked for, and return how.

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
                while self._prepare():
                    self._attempt.start(host_environ, self._selector)
                    while self._attempt.has_work(is_interrupted=self._interrupted_by is not None):
                        self._step(events)
                        if self._standby is not None:
                            self._standby.look(host_environ)
                    self._attempt.close(self._selector)
                    if not self._starts_again():
                        break
                    while self._standby is not None and self._standby.is_awaited() and not self._is_to_end:
                        self._step(events)
            except BaseException:  # whatever ends the launcher: no rank may outlive it
                self._attempt.kill()
                raise
            finally:
                if self._standby is not None:
                    self._standby.close()
        children = self._attempt.children
        return RunEnding(
            tuple(child.ending() for child in children),
            self._interrupted_by,
            num_memory_kills(counters) - kills_before,
        )

    @property
    def _is_to_end(self) -> bool:
        return self._interrupted_by is not None or self._is_guard_gone

    def _prepare(self) -> bool:
        """Prepare the processes of the next attempt; False if the run is to end."""
        self._hear_group()
        if self._is_to_end:
            return False
        children = [
            self._restarts.child(
                plan,
                place,
                attempt=self._num_restarts,
                prefix=self._prefixes[place].replace("${rank}", str(plan.rank)),
                is_by_line=len(self._plans) > 1 or self._restarts.is_by_line,
                orders=self._orders[place],
            )
            for place, plan in enumerate(self._plans)
        ]
        self._attempt = Attempt(children, grace_period_s=self._grace_period_s, standby=self._standby)
        return True

    def _starts_again(self) -> bool:
        """Decide whether the processes start again after a failure of one."""
        failed = self._attempt.first_failure
        if self._is_to_end or failed is None or self._num_restarts >= self._restarts.maximum:
            return False
        self._num_restarts += 1
        assert failed.return_code is not None
        who = "The script" if failed.plan.rank is None else f"Rank {failed.plan.rank}"
        write_beside(
            f"{who} {describe_ending(failed.return_code)}. All ranks start again "
            f"({self._num_restarts} of {self._restarts.maximum})."
        )
        return True

    def _step(self, events: int) -> None:
        ready = [
            key.fileobj if key.data is None else key.data for key, _ in self._selector.select(self._wait_s())
        ]
        if not ready:
            for child in self._attempt.children:
                child.output.flush()
        clear_events(events)
        if self._guard in ready:
            self._hear_guard()
        self._hear_group()
        # Ends come before lines: a rank that says it lost another must not look like the one that failed first.
        self._attempt.reap()
        for source in ready:
            if isinstance(source, Channel):
                self._pump(source)
        if self._attempt.time_left_s == 0:
            self._attempt.kill()
        if self._notice_at is not None and time.monotonic() >= self._notice_at:
            self._give_notice()

    def _wait_s(self) -> float | None:
        times_s = [self._attempt.wait_s(), None if self._standby is None else self._standby.wait_s]
        if self._notice_at is not None:
            times_s.append(max(0.0, self._notice_at - time.monotonic()))
        return min((time_s for time_s in times_s if time_s is not None), default=None)

    def _pump(self, channel: Channel) -> None:
        reader = channel.reader
        channel.pump()
        if not channel.is_open:
            self._selector.unregister(reader)

    def _hear_guard(self) -> None:
        signums = self._guard.recv(_CHUNK)
        if not signums:
            self._is_guard_gone = True
            self._selector.unregister(self._guard)
            self._attempt.kill()
        for signum in signums:
            self._note_signal(signum, "guard")
            self._attempt.send(signum)

    def _hear_group(self) -> None:
        while self._signals_of_group:
            signum = self._signals_of_group.pop(0)
            self._note_signal(signum, "group")
            if signum in ENDING_SIGNALS:
                self._attempt.send_outside_group(signum)

    def _note_signal(self, signum: int, source: str) -> None:
        """Start the grace period, or end it for a second Ctrl-C: one signal to all processes is not two."""
        if signum not in ENDING_SIGNALS:
            return
        if (signum, source) == (signal.SIGINT, self._interrupted_from):
            self._attempt.kill()
        if signum == signal.SIGINT:
            self._interrupted_from = source
            self._notice_at = time.monotonic() + _NOTICE_AFTER_S if self._gives_notice else None
        self._interrupted_by = signum
        self._attempt.start_grace_period()

    def _give_notice(self) -> None:
        """Tell somebody who has pressed Ctrl-C what the run waits for, and how to end it."""
        self._notice_at = None
        running = self._attempt.running
        ranks = [child.plan.rank for child in running if child.plan.rank is not None]
        if self._attempt.has_work(is_interrupted=True):
            left_s = math.ceil(self._attempt.time_left_s)
            who = f"rank{'s' if len(ranks) > 1 else ''} {compact(ranks)}" if ranks else "what still runs"
            write_beside(f"Waiting up to {left_s} s for {who} to end. Press Ctrl-C again to end the run now.")
