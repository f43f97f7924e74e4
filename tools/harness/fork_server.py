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

STACKS_SIGNAL = getattr(signal, "SIGRTMAX", None)
"""Makes a script write the stacks of its threads to standard error; macOS has no signal that scripts do not use."""
_ROOT = Path(__file__).resolve().parents[2]
_SERVE = "import sys; from tools.harness.fork_server_main import serve; serve(*sys.argv[1:])"


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
                # The server has ended, so the exit code of this process is unknown.
                self.returncode = -signal.SIGKILL
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            self._connection.close()
        return self.returncode


class ForkServer:
    """A process that imports torch once and then forks for each program."""

    def __init__(self, modules: Sequence[str] = (), *, origin: ForkServer | None = None) -> None:
        """Start it.

        Args:
            modules: Modules to import in addition to torch. They may not start threads.
            origin: A server to fork it from, which has torch imported.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="accel-fork-")
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 -- lives as long as the server
        self._address = str(Path(self._folder.name) / "socket")
        # Without a buffer: tests wait for the output of scripts, which a buffer would delay.
        environ = {**snapshot(), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        stdin, lifeline = os.pipe()
        told, stdout = os.pipe()
        self._lifeline = os.fdopen(lifeline, "wb", buffering=0)
        with os.fdopen(stdin, "rb") as theirs, os.fdopen(stdout, "wb") as out, os.fdopen(told, "rb") as ready:
            streams = (theirs, out, self._stderr)
            if origin is None:
                self.process: subprocess.Popen[bytes] | ForkedProcess = subprocess.Popen(
                    [sys.executable, "-m", f"{__package__}.fork_server_main", self._address, *modules],
                    stdin=theirs,
                    stdout=out,
                    stderr=self._stderr,
                    env=environ,
                    cwd=_ROOT,  # where `-m` finds this package
                    start_new_session=True,
                )
            else:
                argv = ("-c", _SERVE, self._address, *modules)
                self.process = origin.start(argv, environ=environ, streams=streams)
            out.close()
            if ready.readline() != b"ready\n":
                raise RuntimeError(f"The fork server did not start:\n{self.errors()}")

    def start(
        self,
        argv: tuple[str, ...],
        *,
        environ: Mapping[str, str],
        streams: Sequence[HasFileno],
        cwd: str | Path | None = None,
    ) -> ForkedProcess:
        """Start ``python *argv`` in a separate session.

        Args:
            environ: All variables it is to have.
            streams: Its standard input, output and error. Others stay open too, and their numbers in the
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
        """End the server, and its processes."""
        self._lifeline.close()
        self.process.wait()
        self._stderr.close()
        self._folder.cleanup()


_servers: dict[tuple[str, ...], ForkServer] = {}
_starting = threading.RLock()


def fork_server(modules: tuple[str, ...] = ()) -> ForkServer:
    """Return the server of this process, started at the first use, and again should it have ended.

    Args:
        modules: Imported modules besides torch; there is a server for each choice, which sees the variables
            of this process at its start.
    """
    with _starting:
        server = _servers.get(modules)
        if server is not None and (code := server.process.poll()) is not None:
            warnings.warn(f"The fork server ended with {code}:\n{server.errors()}", stacklevel=2)
            server = None
        if server is None:
            server = ForkServer(modules, origin=fork_server() if modules else None)
            _servers[modules] = server
            atexit.register(server.close)
        return server


def fork_server_pids() -> frozenset[int]:
    """Return the process ids of the servers that were started."""
    return frozenset(server.process.pid for server in _servers.values())
