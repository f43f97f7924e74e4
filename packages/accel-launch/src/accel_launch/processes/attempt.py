"""One start of the processes of a run, until all that they have started has ended; and how often they start."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from accel_launch.messages import compact, write_beside
from accel_launch.plan import ProcessPlan
from accel_launch.processes.child import Child
from accel_launch.processes.output import LogFolder, Output
from accel_launch.processes.signals import ENDING_SIGNALS, send_to_own_group

if TYPE_CHECKING:
    import psutil

    from accel_launch.processes.standby import Standby

_PR_SET_CHILD_SUBREAPER = 36
_ADOPTS = sys.platform == "linux"
_KILL_INTERVAL_S = 0.005
# How long a process that has only to delete what others left is waited for.
_TRACKER_PATIENCE_S = 2.0
# How long the rest of a line is waited for.
_PATIENCE_S = 0.1
# How often it is looked whether anything is left of children that have ended.
_LOOK_INTERVAL_S = 0.1
# When somebody who has pressed Ctrl-C learns what the run waits for.
_NOTICE_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class Restarts:
    """How often all processes of a run start again once one has failed, and with what.

    ``logs`` keeps their output in files. What ranks other than ``shown_ranks`` write is not shown.
    ``is_by_line`` makes a single process write in whole lines, too, since it has ranks of its own. ``attempt`` is the
    number of the first attempt, where a launcher elsewhere counts them.
    """

    maximum: int = 0
    logs: LogFolder | None = None
    shown_ranks: tuple[int, ...] | None = None
    is_by_line: bool = False
    attempt: int = 0

    def standby(self, plans: Sequence[ProcessPlan]) -> Standby | None:
        """Return the process to fork ranks from that start again, None if they do not or if none can be."""
        if not self.maximum or self.logs is None:
            return None
        from accel_launch.processes.standby import Standby, can_be_forked

        return Standby(plans, self.logs.path / "imports.json") if can_be_forked(plans) else None

    def children(
        self,
        plans: Sequence[ProcessPlan],
        prefixes: Sequence[str],
        orders: Sequence[Callable[[int], bytes] | None],
        attempt: int,
    ) -> list[Child]:
        """Return the processes of an attempt, counted from 0, with the variables that torchrun sets."""
        attempt += self.attempt
        children = []
        for place, (plan, prefix, order) in enumerate(zip(plans, prefixes, orders, strict=True)):
            variables = {"TORCHELASTIC_RESTART_COUNT": str(attempt)} if attempt else {}
            logs = None if self.logs is None else self.logs.of(attempt, place)
            if logs is not None:
                variables["TORCHELASTIC_ERROR_FILE"] = str(logs.error_file)
            output = Output(
                prefix=prefix.replace("${rank}", str(plan.rank)),
                is_by_line=len(plans) > 1 or self.is_by_line,
                logs=logs,
                is_shown=self.shown_ranks is None or plan.rank is None or plan.rank in self.shown_ranks,
                brings_messages=self.is_by_line or order is not None,
            )
            told = None if order is None else order(attempt)
            children.append(Child(plan.with_variables(**variables), output, orders=told))
        return children


NO_RESTARTS = Restarts()


class Attempt:
    """The children of this process, all of which, with what they start themselves, are descendants of it.

    The public methods that take a signal, 0 if there is none, are the steps that follow an event.
    """

    def __init__(
        self,
        children: Sequence[Child],
        *,
        grace_period_s: float,
        gives_notice: bool,
        standby: Standby | None = None,
    ) -> None:
        self.children = children
        self.interrupted_by: int | None = None
        self._is_abandoned = False
        self._standby = standby
        self._grace_period_s = grace_period_s
        self._gives_notice = gives_notice
        self._deadline: float | None = None
        self._notice_at: float | None = None

    @property
    def running(self) -> list[Child]:
        """The children that still run."""
        return [child for child in self.children if child.is_running]

    @property
    def first_failure(self) -> Child | None:
        """The child that failed first of those that were not made to end; None if there is none."""
        failing = [child for child in self.children if child.has_failed and not child.was_ended]
        return min(failing, key=lambda child: child.ending().failed_at or 0.0, default=None)

    @property
    def is_ending(self) -> bool:
        """Whether a grace period has begun."""
        return self._deadline is not None

    @property
    def is_to_end(self) -> bool:
        """Whether no other attempt may follow."""
        return self.interrupted_by is not None or self._is_abandoned

    @property
    def has_work(self) -> bool:
        """Whether a child runs, or anything else of an attempt that must leave nothing behind."""
        return bool(self.running) or (self.is_ending and bool(self._rest()))

    @property
    def time_left_s(self) -> float:
        """Seconds until what still runs is killed."""
        return float("inf") if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    @property
    def is_notice_due(self) -> bool:
        """Whether it is time for `give_notice`."""
        return self._notice_at is not None and time.monotonic() >= self._notice_at

    @property
    def wait_s(self) -> float | None:
        """How long to wait for the next event at most, None for any time."""
        times_s = [self.time_left_s] if self.is_ending else []
        if self._notice_at is not None:
            times_s.append(max(0.0, self._notice_at - time.monotonic()))
        if any(child.output.has_pending for child in self.children):
            times_s.append(_PATIENCE_S)
        if not self.running:
            times_s.append(_LOOK_INTERVAL_S)
        return min(times_s, default=None)

    def start(self, host_environ: Mapping[str, str], selector: selectors.BaseSelector) -> None:
        """Start the children, and let ``selector`` wait for what they write.

        Raises:
            OSError: If one cannot be started.
        """
        for child in self.children:
            for channel in child.output.channels:
                selector.register(channel.reader, selectors.EVENT_READ, channel)
        for child in self.children:
            child.start(host_environ, standby=self._standby)
        adopt_orphans()

    def flush(self) -> None:
        """Pass on lines that are not complete."""
        for child in self.children:
            child.output.flush()

    def close(self, selector: selectors.BaseSelector) -> None:
        """Pass on the rest of what the children wrote."""
        for child in self.children:
            child.close(before=selector.unregister)
        self._deadline = None

    def reap(self) -> Iterator[Child]:
        """Return children as they turn out to have ended; orphans that we have adopted only have to be waited for."""
        while (ended := _next_ended()) is not None:
            pid, status = ended
            if self._standby is not None and self._standby.pid == pid:
                self._standby.note_end()
            for child in self.children:
                if child.pid == pid:
                    child.note_end(status)
                    yield child

    def note_signal(self, signum: int) -> None:
        """Remember that the run was ended by a signal; somebody who pressed Ctrl-C gets a notice."""
        self.interrupted_by = signum
        if signum == signal.SIGINT and self._gives_notice:
            self._notice_at = time.monotonic() + _NOTICE_AFTER_S

    def start_grace_period(self, signum: int = 0) -> None:
        """Let the grace period begin, unless it has."""
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

    def end_children(self, signum: int = 0) -> None:
        """Send SIGTERM to the children that still run."""
        for child in self.children:
            child.was_ended = child.is_running
        self.send(signal.SIGTERM)

    def abandon(self, signum: int = 0) -> None:
        """Let no other attempt follow."""
        self._is_abandoned = True

    def kill(self, signum: int = 0) -> None:
        """Kill everything that is left, now."""
        while rest := self._rest():
            kill(rest)
            time.sleep(_KILL_INTERVAL_S)
            for _ in self.reap():
                pass

    def give_notice(self, signum: int = 0) -> None:
        """Write what the run waits for after a Ctrl-C, and how to end it."""
        self._notice_at = None
        if self.has_work:
            ranks = [child.plan.rank for child in self.running if child.plan.rank is not None]
            who = f"rank{'s' if len(ranks) > 1 else ''} {compact(ranks)}" if ranks else "what still runs"
            left_s = math.ceil(self.time_left_s)
            write_beside(f"Waiting up to {left_s} s for {who} to end. Press Ctrl-C again to end the run now.")

    def _rest(self) -> list[psutil.Process]:
        standby = None if self._standby is None else self._standby.pid
        return [process for process in rest_of_run() if process.pid != standby]


def _next_ended() -> tuple[int, int] | None:
    """Return the number and status of a child that has ended, None if there is none at the moment."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none is lost; on Linux only."""
    if not _ADOPTS:
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def rest_of_run() -> list[psutil.Process]:
    """Return the descendants of this process; where it adopts no orphans, all other processes of its group."""
    import psutil

    if _ADOPTS:
        return psutil.Process().children(recursive=True)
    return [
        process for process in psutil.process_iter() if process.pid != os.getpid() and _is_in_group(process)
    ]


def kill(processes: Iterable[psutil.Process]) -> None:
    """Send each a SIGKILL, unless it has ended; Python's trackers first delete the shared memory of the others."""
    import psutil

    trackers: list[psutil.Process] = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if any("multiprocessing.resource_tracker" in word for word in process.cmdline()):
                trackers.append(process)
            else:
                process.kill()
    _, hanging = psutil.wait_procs(trackers, timeout=_TRACKER_PATIENCE_S)
    for process in hanging:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def signal_jobs(processes: Iterable[psutil.Process], signum: int) -> None:
    """Send a signal to the process groups of our session beside our own, as ``timeout`` and ``bash -m`` make them.

    The first process of such a group gets it: it is the program, or passes it on, as ``timeout`` does. A session of
    its own is left alone: a service that has to finish its work.
    """
    own_group, own_session = os.getpgrp(), os.getsid(0)
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            is_first_of_group = os.getpgid(process.pid) == process.pid != own_group
            if is_first_of_group and os.getsid(process.pid) == own_session:
                os.kill(process.pid, signum)


def _is_in_group(process: psutil.Process) -> bool:
    try:
        return os.getpgid(process.pid) == os.getpgrp()
    except (ProcessLookupError, PermissionError):  # it has ended, or is none of ours
        return False
