"""A process that has imported what the ranks of this machine import: after a failure they are forked from it.

It starts once a rank has prepared, and so has imported what it needs, and stays for all restarts of the run. Where
ranks cannot be forked from it, they start as ever, and one line says why.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
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
# They differ between attempts, in addition to those that differ between ranks.
_OF_ATTEMPTS = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RESTART_COUNT"}


class Standby:
    """The standby of a run whose ranks have the ``plans`` and report what they have imported in the file ``report``."""

    @classmethod
    def of(cls, plans: Sequence[ProcessPlan], report: Path) -> Standby | None:
        """Return a standby for processes that are Python with one program; None for others, and not on Linux."""
        commands = {(plan.argv, plan.cwd) for plan in plans}
        if sys.platform != "linux" or len(commands) != 1:
            return None
        argv = plans[0].argv
        end = argv.index("-u") + 1 if argv[0] == sys.executable and "-u" in argv else len(argv)
        is_script = end < len(argv) and (argv[end] == "-m" or not argv[end].startswith("-"))
        return cls(plans, report, argv[:end], argv[end:]) if is_script else None

    def __init__(
        self, plans: Sequence[ProcessPlan], report: Path, interpreter: Sequence[str], program: Sequence[str]
    ) -> None:
        self._plans = plans
        self._report = report
        self._argv = (*interpreter, standby_program.__file__, *program)
        self._line: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._is_refused = False

    @property
    def pid(self) -> int | None:
        """Its process; None while there is none."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    @property
    def variables(self) -> dict[str, str]:
        """What the ranks need to report what they have imported."""
        return {REPORT_VARIABLE: str(self._report)}

    @property
    def wait_s(self) -> float | None:
        """How long to wait at most before the next `look`; None for any time."""
        return _LOOK_INTERVAL_S if self._process is None and not self._is_refused else None

    def is_awaited(self, since_s: float) -> bool:
        """Whether ranks that have waited ``since_s`` wait on, until it has imported everything."""
        if self._hear() or self.pid is None:
            return False
        if since_s > _IMPORT_PATIENCE_S:
            self._is_refused = True
            self._refuse(f"its imports take more than {_IMPORT_PATIENCE_S:.0f} s")
        return not self._is_refused

    def look(self, host_environ: Mapping[str, str]) -> None:
        """Start it if a rank has prepared meanwhile."""
        if self.wait_s is not None and self._report.exists():
            self._start(json.loads(self._report.read_text()), host_environ)

    def _start(self, modules: Mapping[str, str], host_environ: Mapping[str, str]) -> None:
        environs = [plan.with_variables(**self.variables).environ_on(host_environ) for plan in self._plans]
        common = set.intersection(*(set(environ.items()) for environ in environs))
        environ = {name: value for name, value in common if name not in _OF_ATTEMPTS}
        watched = _OF_ATTEMPTS.union(*environs).difference(environ)
        self._line, theirs = socket.socketpair()
        try:
            # Its forks have to be in the group of the ranks, so it is, too; signals to the group are not for it.
            with theirs, blocked(FORWARDED_SIGNALS):
                self._process = subprocess.Popen(
                    tied_to_parent(self._argv, parent_pid=os.getpid()),
                    env=environ,
                    cwd=self._plans[0].cwd,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            with _packed([modules, sorted(watched)]) as request:
                socket.send_fds(self._line, [b"!"], [request.fileno()])
        except OSError as error:  # the run goes on without it, as where its folder is gone
            self._is_refused = True
            self._refuse(f"it cannot be started: {error}")

    def fork(self, plan: ProcessPlan, environ: Mapping[str, str], streams: Sequence[int]) -> int | None:
        """Start a process of ``plan`` as a child of this process, with these standard streams; return its number.

        Returns:
            None if it cannot be forked, and has to be started.
        """
        if not self._hear():
            return None
        assert self._line is not None
        ours, theirs = socket.socketpair()
        ours.settimeout(_PATIENCE_S)
        request = _packed([plan.argv, dict(environ), str(plan.cwd), os.getpid()])
        with ours, request:
            try:
                with theirs:
                    socket.send_fds(self._line, [b"!"], [request.fileno(), theirs.fileno(), *streams])
                pid = int(ours.recv(_CHUNK) or -1)
                ours.send(b"!")
            except OSError:  # it has ended, or does not answer
                pid = -1
        if pid == -1:
            self._refuse("it has ended")
        return None if pid == -1 else pid

    def note_end(self) -> None:
        """Take note that its process has ended, and was waited for."""
        assert self._process is not None
        self._process.returncode = 0

    def _hear(self) -> bool:
        """Return whether it is ready."""
        if self._line is None or self._is_ready:
            return self._is_ready
        try:
            answer = self._line.recv(_CHUNK, socket.MSG_DONTWAIT).decode()
        except BlockingIOError:  # it still imports
            return False
        except ConnectionResetError:
            answer = ""
        self._is_ready = answer == standby_program.READY
        if not self._is_ready:
            self._is_refused = bool(answer)
            self._refuse(answer or "it has ended")
        return self._is_ready

    def _refuse(self, reason: str) -> None:
        write_beside(f"The ranks start without the standby: {reason}.")
        self.close()

    def close(self) -> None:
        """End it. The next one starts after the ranks have prepared again, unless there is none for them."""
        if self._line is not None:
            self._line.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._line = self._process = None
        self._is_ready = False
        self._report.unlink(missing_ok=True)


def _packed(content: object) -> BinaryIO:
    """Return a file without a name that holds ``content``, for a process that gets its descriptor."""
    file = os.fdopen(os.memfd_create("accel-standby"), "w+b")
    file.write(json.dumps(content).encode())
    file.flush()
    return file
