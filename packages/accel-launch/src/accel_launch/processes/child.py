"""One process of a run: how it is started, what it writes, and how it ended, also in words."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from accel_launch.plan import ProcessPlan
from accel_launch.processes.output import Output, write_all
from accel_launch.processes.parent_death import tied_to_parent

if TYPE_CHECKING:
    from accel_launch.processes.standby import Standby

# psutil knows nothing of control groups, nor of the kernel's killing.
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class ChildEnding:
    """How one process of a run ended, which is a rank or starts ranks; and of a rank, which it is.

    ``return_code`` is ``-n`` for signal ``n``. ``failed_at`` is the moment, on the clock of `time.monotonic`,
    at which it showed that it was failing: by a traceback, or by its end; None if it did not fail.
    ``ended_at`` is the moment of its end, None if unknown.
    ``was_ended`` tells that it still ran when the run was over and was asked to end.
    """

    return_code: int
    failed_at: float | None = None
    was_ended: bool = False
    last_lines: tuple[str, ...] = ()
    ended_at: float | None = None
    rank: int = 0
    host: str = field(default_factory=socket.gethostname)


class Child:
    """A running process; its output goes through `output`.

    With ``orders`` it reads them from its standard input, which also brings the numbers of signals, one in a
    line, instead of the signals; its end means that we are gone.
    """

    def __init__(self, plan: ProcessPlan, output: Output, *, orders: bytes | None = None) -> None:
        self.plan = plan
        self.orders = orders
        self._order_pipe: int | None = None
        self.output = output
        self.pid = 0
        self.return_code: int | None = None
        self._ended_at = 0.0
        self.was_ended = False
        """Whether it still ran when the attempt was over."""

    @property
    def is_running(self) -> bool:
        return self.return_code is None

    @property
    def has_failed(self) -> bool:
        return self.return_code not in (None, 0)

    @property
    def is_in_our_group(self) -> bool:
        """Whether a signal to our process group reaches it."""
        return self.is_running and os.getpgid(self.pid) == os.getpgrp()

    def start(self, host_environ: Mapping[str, str], *, standby: Standby | None = None) -> None:
        """Start it in our process group, as a fork of ``standby`` if that is possible."""
        orders_for_it = None
        if self.orders is not None:
            orders_for_it, self._order_pipe = os.pipe()
        environ, output = self.plan.environ_on(host_environ), self.output
        streams = (orders_for_it or 0, output.stdout, output.stderr)
        forked = None if standby is None else standby.fork(self.plan, environ, streams)
        if forked is None:
            process = subprocess.Popen(
                tied_to_parent(self.plan.argv, parent_pid=os.getpid()),
                env=environ,
                cwd=self.plan.cwd,
                stdin=orders_for_it,
                stdout=output.stdout,
                stderr=output.stderr,
            )
            process.returncode = 0  # it is us who wait for it, so `subprocess` has nothing to clean up
        self.pid = forked or process.pid
        if orders_for_it is not None:
            os.close(orders_for_it)
            self._order(self.orders or b"")
        self.output.started()

    def note_end(self, status: int) -> None:
        """Take note that it has ended, with what `os.waitpid` says of it."""
        self.return_code = os.waitstatus_to_exitcode(status)
        self._ended_at = time.monotonic()

    def send(self, signum: int) -> None:
        """Send it a signal, if it still runs. Until we wait for it, the kernel gives its number to no other process."""
        if not self.is_running:
            return
        if self._order_pipe is None:
            os.kill(self.pid, signum)
        else:
            self._order(b"%d\n" % signum)

    def close(self, *, before: Callable[[int], object]) -> None:
        """Close the pipes to and from it; ``before`` is called for each that it has written to, if still open."""
        for channel in self.output.channels:
            if channel.is_open:
                before(channel.reader)
        self.output.close()
        if self._order_pipe is not None:
            os.close(self._order_pipe)
            self._order_pipe = None

    def _order(self, text: bytes) -> None:
        assert self._order_pipe is not None
        with suppress(BrokenPipeError):  # it has ended
            write_all(self._order_pipe, text)

    def ending(self) -> ChildEnding:
        """Return how it ended."""
        assert self.return_code is not None
        tail = self.output.tail
        is_by_exception = self.return_code == 1 or self.was_ended
        moment = (is_by_exception and tail.traceback_at) or self._ended_at
        failed_at = moment if self.return_code != 0 else None
        lines, rank = tail.lines(), self.plan.rank or 0
        return ChildEnding(self.return_code, failed_at, self.was_ended, lines, self._ended_at, rank)


def exit_code_for_shell(return_code: int) -> int:
    """Turn a return code of `subprocess` into the exit code of a shell: signal ``n`` becomes ``128 + n``."""
    return return_code if return_code >= 0 else 128 - return_code


def signal_name(number: int) -> str:
    """Return ``SIGSEGV`` for 11; ``signal 40`` where the signal has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_ending(return_code: int, *, num_memory_kills: int = 0) -> str:
    """Say how a process ended: ``ended with exit code 3``, ``was killed by SIGSEGV``.

    Where the kernel has killed processes for want of memory during the run, a SIGKILL is taken to be that.
    """
    if return_code >= 0:
        return f"ended with exit code {return_code}"
    if return_code == -signal.SIGKILL and num_memory_kills:
        return "was killed by the out-of-memory killer"
    return f"was killed by {signal_name(-return_code)}"


def counter_files(
    own_cgroup: Path = Path("/proc/self/cgroup"), root: Path = _CGROUP, proc: Path = Path("/proc")
) -> tuple[Path, ...]:
    """Return the files of this machine that count such kills: of our control group, else of the machine."""
    candidates: list[Path] = []
    for line in own_cgroup.read_text().splitlines() if own_cgroup.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            candidates.append(root / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            candidates.append(root / "memory" / path.lstrip("/") / "memory.oom_control")
    # In a container our group is the root that is mounted, whatever its path is called outside.
    candidates += [root / "memory.events", root / "memory" / "memory.oom_control"]
    found = [path for path in candidates if path.is_file()]
    return (found[0],) if found else tuple(path for path in (proc / "vmstat",) if path.is_file())


def num_memory_kills(files: Iterable[Path]) -> int:
    """Return how many processes were killed for want of memory so far."""
    total = 0
    for file in files:
        for line in file.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                total += int(number)
    return total
