"""A process that has imported what the ranks of this machine import: after a failure they are forked from it.

It starts once a rank has prepared, and stays for all restarts. Where ranks cannot be forked, a line says why.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from accel_launch.messages import write_beside
from accel_launch.plan import ProcessPlan
from accel_launch.processes import standby_program
from accel_launch.processes.parent_death import tied_to_parent
from accel_launch.processes.signals import FORWARDED_SIGNALS, blocked
from accel_state.imports_report import REPORT_VARIABLE

# How often it is looked whether a rank has prepared.
_LOOK_INTERVAL_S = 0.5
# A fork takes tens of milliseconds; a standby that needs longer than this is stopped or hangs.
_PATIENCE_S = 30.0
# Ranks that import the same would need no less than the rest of its imports.
_IMPORT_PATIENCE_S = 120.0
_CHUNK = 4096
# They differ between attempts, in addition to those that differ between ranks: machines may meet in another order.
_OF_ATTEMPTS = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"}
_OF_ATTEMPTS |= {"RANK", "GROUP_RANK", "ROLE_RANK"}


class Standby:
    """The standby of ranks that run one program, and report what they have imported in the file ``report``."""

    def __init__(self, plans: Sequence[ProcessPlan], report: Path) -> None:
        self.plans = [plan.with_variables(**{REPORT_VARIABLE: str(report)}) for plan in plans]
        self._report = report
        self._line: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._deadline = 0.0
        self._is_ready = False
        self._is_refused = False

    @property
    def pid(self) -> int | None:
        """Its process; None while there is none."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    @property
    def wait_s(self) -> float | None:
        """How long to wait at most before the next `look`; None for any time."""
        return _LOOK_INTERVAL_S if self._process is None and not self._is_refused else None

    def is_awaited(self) -> bool:
        """Whether ranks that start again should wait for it to import the rest."""
        if not self._hear() and self.pid is not None and time.monotonic() > self._deadline:
            self._refuse(f"its imports take more than {_IMPORT_PATIENCE_S:.0f} s", for_good=True)
        return not self._is_ready and self.pid is not None

    def look(self, host_environ: Mapping[str, str]) -> None:
        """Start it if a rank has prepared meanwhile."""
        if self.wait_s is None or not self._report.exists():
            return
        environs = [plan.environ_on(host_environ) for plan in self.plans]
        common = set.intersection(*(set(environ.items()) for environ in environs))
        environ = {name: value for name, value in common if name not in _OF_ATTEMPTS}
        watched = _OF_ATTEMPTS.union(*environs).difference(environ)
        argv = self.plans[0].argv
        place = argv.index("-u") + 1
        program = (*argv[:place], standby_program.__file__, *argv[place:])
        self._line, theirs = socket.socketpair()
        self._deadline = time.monotonic() + _IMPORT_PATIENCE_S
        try:
            # Its forks have to be in the group of the ranks, so it is, too; signals to the group are not for it.
            with theirs, blocked(FORWARDED_SIGNALS):
                self._process = subprocess.Popen(
                    tied_to_parent(program, parent_pid=os.getpid()),
                    env=environ,
                    cwd=self.plans[0].cwd,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            report = json.loads(self._report.read_text())
            with _packed([*report, environ, sorted(watched)]) as request:
                socket.send_fds(self._line, [b"!"], [request.fileno()])
        except OSError as error:  # the run goes on without it, as where its folder is gone
            self._refuse(f"it cannot be started: {error}", for_good=True)

    def fork(
        self,
        plan: ProcessPlan,
        environ: Mapping[str, str],
        streams: Sequence[int],
        *,
        starts_session: bool = False,
    ) -> int | None:
        """Start a child of this process with these streams; return its number, None if it cannot be forked.

        This process has to adopt orphans (`adopt_orphans`).
        """
        if self._line is None or not self._hear():
            return None
        ours, theirs = socket.socketpair()
        ours.settimeout(_PATIENCE_S)
        content = [plan.argv, dict(environ), str(plan.cwd), os.getpid(), starts_session]
        with ours, _packed(content) as request:
            try:
                with theirs:
                    socket.send_fds(self._line, [b"!"], [request.fileno(), theirs.fileno(), *streams])
                pid = int(ours.recv(_CHUNK))
                ours.send(b"!")
                return pid
            except (OSError, ValueError):  # it, or its fork, has written nothing
                self._refuse("it has ended")
                return None

    def note_end(self) -> None:
        """Take note that its process has ended, and was waited for."""
        assert self._process is not None
        self._process.returncode = 0

    def _hear(self) -> bool:
        """Return whether it is ready."""
        if self._line is not None and not self._is_ready:
            try:
                answer = self._line.recv(_CHUNK, socket.MSG_DONTWAIT).decode()
            except BlockingIOError:  # it still imports
                return False
            except ConnectionResetError:
                answer = ""
            self._is_ready = answer == standby_program.READY
            if not self._is_ready:
                self._refuse(answer or "it has ended", for_good=bool(answer))
        return self._is_ready

    def _refuse(self, reason: str, *, for_good: bool = False) -> None:
        write_beside(f"The ranks start without the standby: {reason}.")
        self._is_refused = for_good
        self.close()

    def close(self) -> None:
        """End it. The next one starts once the ranks have prepared again, unless it was refused for good."""
        if self._line is not None:
            self._line.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._line = self._process = None
        self._is_ready = False
        self._report.unlink(missing_ok=True)


def can_be_forked(plans: Sequence[ProcessPlan]) -> bool:
    """Whether the processes of ``plans`` can be forks of a standby: Python with one program, on Linux."""
    argv = plans[0].argv
    after = argv[argv.index("-u") + 1 :] if argv[0] == sys.executable and "-u" in argv else ()
    is_program = bool(after) and (after[0] == "-m" or not after[0].startswith("-"))
    return sys.platform == "linux" and is_program and all(plan.argv == argv for plan in plans)


def _packed(content: object) -> BinaryIO:
    """Return a file without a name that holds ``content``, for a process that gets its descriptor."""
    file = os.fdopen(os.memfd_create("accel-standby"), "w+b")
    file.write(json.dumps(content).encode())
    file.flush()
    return file
