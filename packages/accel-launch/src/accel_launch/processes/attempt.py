"""One start of the processes of a run, until all that they have started has ended; and how often they start."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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

    def child(
        self,
        plan: ProcessPlan,
        place: int,
        *,
        attempt: int,
        prefix: str,
        is_by_line: bool,
        orders: Callable[[int], bytes] | None,
    ) -> Child:
        """Return the process at ``place`` in an attempt, counted from 0, with the variables that torchrun sets."""
        attempt += self.attempt
        variables = {"TORCHELASTIC_RESTART_COUNT": str(attempt)} if attempt else {}
        logs = None if self.logs is None else self.logs.of(attempt, place)
        if logs is not None:
            variables["TORCHELASTIC_ERROR_FILE"] = str(logs.error_file)
        is_shown = self.shown_ranks is None or plan.rank is None or plan.rank in self.shown_ranks
        output = Output(prefix=prefix, is_by_line=is_by_line, logs=logs, is_shown=is_shown)
        told = None if orders is None else orders(attempt)
        return Child(plan.with_variables(**variables), output, orders=told)


NO_RESTARTS = Restarts()


class Attempt:
    """The ``children`` of one start, in the process group of this process.

    Once one of them has failed, the others have the grace period to end. The ``standby`` outlives them.
    """

    def __init__(
        self, children: Sequence[Child], *, grace_period_s: float, standby: Standby | None = None
    ) -> None:
        self.children = children
        self._standby = standby
        self._grace_period_s = grace_period_s
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
            child.start(host_environ, standby=self._standby)
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
            if self._standby is not None and self._standby.pid == pid:
                self._standby.note_end()
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
