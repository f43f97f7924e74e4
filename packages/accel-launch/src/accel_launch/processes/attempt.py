"""One start of the processes of a run, until all that they have started has ended; and how often they start."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from accel_launch.plan import ProcessPlan
from accel_launch.processes.child import Child
from accel_launch.processes.descendants import adopt_orphans, kill, rest_of_run, signal_jobs
from accel_launch.processes.logs import LogFolder
from accel_launch.processes.output import Output
from accel_launch.processes.signals import ENDING_SIGNALS, send_to_own_group

if TYPE_CHECKING:
    import psutil

_KILL_INTERVAL_S = 0.005
# How long the rest of a line is waited for.
_PATIENCE_S = 0.1
# How often it is looked whether anything is left of children that have ended.
_LOOK_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class Restarts:
    """How often all processes of a run start again once one has failed, and with what.

    ``logs`` keeps their output in files. ``rendezvous`` is a program that gives them their ranks before each start and
    may call for another one (see `accel_launch.rendezvous`).
    """

    maximum: int = 0
    logs: LogFolder | None = None
    rendezvous: ProcessPlan | None = None

    def child(
        self,
        plan: ProcessPlan,
        place: int,
        *,
        attempt: int,
        restarts: int,
        prefix: str,
        is_by_line: bool,
        orders: bytes | None,
    ) -> Child:
        """Return the process at ``place`` in an attempt, with the variables that torchrun has for it.

        ``attempt`` counts the starts on this machine, ``restarts`` those that followed a failure on any.
        """
        variables = {"TORCHELASTIC_RESTART_COUNT": str(restarts)} if restarts else {}
        logs = None if self.logs is None else self.logs.of(attempt, place)
        if logs is not None:
            variables["TORCHELASTIC_ERROR_FILE"] = str(logs.error_file)
        output = Output(prefix=prefix, is_by_line=is_by_line, logs=logs)
        return Child(plan.with_variables(**variables), output, orders=orders)


NO_RESTARTS = Restarts()


class Attempt:
    """The ``children`` of one start, in the process group of this process.

    Once one of them has failed, the others have the grace period to end. The process ``spared`` outlives attempts.
    """

    def __init__(
        self, children: Sequence[Child], *, grace_period_s: float, spared: int | None = None
    ) -> None:
        self.children = children
        self._grace_period_s = grace_period_s
        self._spared = spared
        self._deadline: float | None = None

    @property
    def running(self) -> list[Child]:
        """The children that still run."""
        return [child for child in self.children if child.is_running]

    @property
    def has_succeeded(self) -> bool:
        """Whether no child has failed, or was made to end."""
        return not any(child.has_failed or child.was_ended for child in self.children)

    @property
    def first_failure(self) -> Child | None:
        """The child that failed first of those that were not made to end; None if there is none."""
        failing = [child for child in self.children if child.has_failed and not child.was_ended]
        return min(failing, key=lambda child: child.ending().failed_at or 0.0, default=None)

    @property
    def time_left_s(self) -> float:
        """Seconds until what still runs is killed."""
        return float("inf") if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def start(self, host_environ: Mapping[str, str], selector: selectors.BaseSelector) -> None:
        """Start the children, and let ``selector`` wait for what they write.

        Raises:
            OSError: If one cannot be started.
        """
        for child in self.children:
            for channel in child.output.channels:
                selector.register(channel.reader, selectors.EVENT_READ, channel)
        for child in self.children:
            child.start(host_environ, inherited=[key.fd for key in selector.get_map().values()])
        adopt_orphans()

    def close(self, selector: selectors.BaseSelector) -> None:
        """Pass on the rest of what the children wrote."""
        for child in self.children:
            child.close(before=selector.unregister)
        self._deadline = None

    def has_work(self, *, is_interrupted: bool) -> bool:
        """Tell whether a child runs, or anything of an attempt that must leave nothing behind."""
        if self.running:
            return True
        if self.has_succeeded and not is_interrupted:
            return False  # what it has left in the background may go on
        if self._deadline is None:
            self.kill()
        return bool(self._rest())

    def wait_s(self) -> float | None:
        """Return how long to wait for the next event at most, None for any time."""
        times_s = [] if self._deadline is None else [self.time_left_s]
        if any(child.output.has_pending for child in self.children):
            times_s.append(_PATIENCE_S)
        if not self.running:
            times_s.append(_LOOK_INTERVAL_S)
        return min(times_s, default=None)

    def reap(self) -> None:
        """Take note of children that have ended; orphans that we have adopted only have to be waited for."""
        while (ended := _next_ended()) is not None:
            pid, status = ended
            for child in self.children:
                if child.pid == pid:
                    child.note_end(status)
                    if child.has_failed:
                        self.end_others()

    def end_others(self) -> None:
        """Ask the children that still run to end, unless that has been done."""
        if self._deadline is None and self.running:
            self.start_grace_period()
            for child in self.children:
                child.was_ended = child.is_running
            self.send(signal.SIGTERM)

    def start_grace_period(self) -> None:
        """Let everything be killed after the grace period, if not before."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._grace_period_s

    def send(self, signum: int) -> None:
        """Send a signal to the children, and one that ends a run to all of their group and session."""
        if signum in ENDING_SIGNALS and not any(child.orders is not None for child in self.children):
            send_to_own_group(signum)
            self.send_outside_group(signum)
            return
        for child in self.children:
            child.send(signum)

    def send_outside_group(self, signum: int) -> None:
        """Send a signal to what has left the group of this process: children, and groups that they have made."""
        for child in self.children:
            if not child.is_in_our_group:
                child.send(signum)
        own = [child.pid for child in self.children]
        signal_jobs((process for process in self._rest() if process.pid not in own), signum)

    def kill(self) -> None:
        """Kill everything that is left, now."""
        while rest := self._rest():
            kill(rest)
            time.sleep(_KILL_INTERVAL_S)
            self.reap()

    def _rest(self) -> list[psutil.Process]:
        return [process for process in rest_of_run() if process.pid != self._spared]


def _next_ended() -> tuple[int, int] | None:
    """Return the number and status of a child that has ended, None if there is none at the moment."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None
