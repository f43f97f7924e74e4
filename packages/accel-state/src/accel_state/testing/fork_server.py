"""Starts scripts by forking a process that has torch imported: tens of milliseconds instead of seconds."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Protocol

from accel_state.environment import snapshot


class HasFileno(Protocol):
    """An open file, pipe or connection."""

    def fileno(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Request:
    """A program to run: ``argv`` as Python takes it, either a file or ``-c`` and code, then arguments."""

    argv: tuple[str, ...]
    environ: dict[str, str]
    cwd: str
    num_streams: int


class ForkedProcess:
    """A running script, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, connection: Connection[Request, int]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._connection = connection
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        with self._lock:
            if self.returncode is None and self._connection.poll():
                self._take_exit_code()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code.

        Raises:
            subprocess.TimeoutExpired: After ``timeout`` seconds.
        """
        with self._lock:
            if self.returncode is None and not self._connection.poll(timeout):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            return self._take_exit_code()

    def send_signal(self, signum: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        self.send_signal(signal.SIGKILL)

    def _take_exit_code(self) -> int:
        if self.returncode is None:
            try:
                self.returncode = self._connection.recv()
            except (EOFError, ConnectionResetError):
                # The server has ended, and nobody can tell how this process ends.
                self.returncode = -signal.SIGKILL
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            self._connection.close()
        return self.returncode


class ForkServer:
    """A child process that imports torch once and then forks itself for each program."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="accel-fork-")
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 -- lives as long as the server
        self._address = str(Path(self._folder.name) / "socket")
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.fork_server_main", self._address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**snapshot(), "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"The fork server did not start:\n{self.errors()}")

    def start(
        self,
        argv: tuple[str, ...],
        *,
        environ: Mapping[str, str],
        streams: Sequence[HasFileno],
        cwd: str | Path | None = None,
    ) -> ForkedProcess:
        """Start ``python *argv`` in a session of its own.

        Args:
            environ: All variables it is to have.
            streams: Its standard input, output and error. Further ones stay open too, and their numbers in the
                new process are added to its arguments.
        """
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(self._address)
            connection: Connection[Request, int] = Connection(client.detach())
        connection.send(Request(argv, dict(environ), str(cwd or Path.cwd()), len(streams)))
        for stream in streams:
            send_handle(connection, stream.fileno(), self.process.pid)
        return ForkedProcess(connection.recv(), connection)

    def errors(self) -> str:
        """Return what the server has written to standard error."""
        return os.pread(self._stderr.fileno(), 1 << 16, 0).decode(errors="replace")

    def close(self) -> None:
        """End the server, and with it what it has started."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self._stderr.close()
        self._folder.cleanup()


_servers: list[ForkServer] = []
_starting = threading.Lock()


def fork_server() -> ForkServer:
    """Return the server of this process, started at the first use, and again should it have ended."""
    with _starting:
        if _servers and (code := _servers[-1].process.poll()) is not None:
            warnings.warn(f"The fork server ended with {code}:\n{_servers[-1].errors()}", stacklevel=2)
            _servers.clear()
        if not _servers:
            _servers.append(ForkServer())
            atexit.register(_servers[0].close)
        return _servers[0]


def fork_server_pids() -> frozenset[int]:
    """Return the process id of the server, if it was started."""
    return frozenset(server.process.pid for server in _servers)
