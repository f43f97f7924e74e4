"""Starts scripts by forking a process that has torch imported: tens of milliseconds instead of seconds.

That process forks only from its one thread, before anything has used a thread pool. A child runs its program on the
main thread of an ordinary interpreter. Threads, exit handlers and what the program holds end as in any script; then it
ends at once, because freeing torch is most of what a script costs, see `COMPLETE_EXIT`.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import importlib
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from accel_state.environment import restore, snapshot

if TYPE_CHECKING:
    from _typeshed import HasFileno

STACKS_SIGNAL = getattr(signal, "SIGRTMAX", signal.SIGUSR2)
"""Makes a script write the stacks of its threads to standard error."""
PRELOADED = (
    "torch", "torch._dynamo", "torch.distributed.run", "torch.nn.parallel", "torch.utils.data", "psutil",
)  # fmt: skip
"""The imports of scripts that take most of their time. None of ours, whose imports are tested."""
COMPLETE_EXIT = {"TEST_COMPLETE_EXIT": "true"}
"""Variables for a script whose end is the subject of a test: libraries are finalized as in any process."""
_ROOT = Path(__file__).resolve().parents[2]
_SERVE = "import sys; from tools.harness.fork_server import serve; serve(*sys.argv[1:])"
_FIRST = "import atexit; atexit.register(lambda: end()); from tools.harness.fork_server import end; "
"""Registers the first exit handler, which is the last to run: before those of multiprocessing, for one."""
_exit_code = 0


class ForkedProcess:
    """A running script, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, report: Connection[Any, int]) -> None:
        self._report = report
        self.pid = report.recv()
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(timeout=0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code at the end, or raise `subprocess.TimeoutExpired` after ``timeout`` seconds."""
        with self._lock:
            if self.returncode is None:
                if not self._report.poll(timeout):
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
                try:
                    self.returncode = self._report.recv()
                except EOFError:  # the server was killed
                    self.returncode = -signal.SIGKILL
                self._report.close()
            return self.returncode

    def send_signal(self, signum: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """A process that imports torch once and then forks for each program."""

    def __init__(self, modules: Sequence[str] = (), *, origin: ForkServer | None = None) -> None:
        """Start it.

        Args:
            modules: Modules to import in addition to torch. They may not start threads.
            origin: A server to fork it from, which has torch imported.
        """
        # Without a buffer, in C neither: tests wait for the output of scripts, and `end` flushes none of C's.
        environ = {**snapshot(), "PYTHONUNBUFFERED": "1"}
        argv = ["-c", _SERVE, *modules] if origin else ["-c", _FIRST + _SERVE, *PRELOADED]
        self._line, theirs = socket.socketpair()
        self._out = out = tempfile.TemporaryFile()  # noqa: SIM115 -- lives as long as the server
        with theirs:
            self.process: subprocess.Popen[bytes] | ForkedProcess
            if origin is None:
                self.process = subprocess.Popen(
                    [sys.executable, *argv],
                    stdin=theirs.fileno(),
                    stdout=out,
                    stderr=out,
                    env=environ,
                    cwd=_ROOT,  # where it finds this package
                    start_new_session=True,
                )
            else:
                self.process = origin.start(argv, environ=environ, streams=(theirs, out, out))
            theirs.close()
            if not self._line.recv(1):
                raise RuntimeError(f"The fork server did not start: {self.ending()}")

    def start(
        self,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str],
        streams: Sequence[HasFileno],
        cwd: str | Path | None = None,
    ) -> ForkedProcess:
        """Start ``python *argv`` in a separate session: a file, or ``-c`` and code, then arguments.

        Args:
            environ: All variables it is to have.
            streams: Its standard input, output and error. Others stay open too, and their numbers in the
                new process are added to its arguments.
        """
        ours, theirs = Pipe()
        with theirs:
            socket.send_fds(self._line, [b"!"], [theirs.fileno(), *(stream.fileno() for stream in streams)])
        ours.send((list(argv), dict(environ), str(cwd or Path.cwd())))  # read by the process
        return ForkedProcess(ours)

    def ending(self) -> str:
        """Wait for its end and return the exit code and what it wrote."""
        code = self.process.wait()
        self._out.seek(0)
        return f"exit code {code}, and it wrote:\n{self._out.read().decode(errors='replace')}"

    def close(self) -> None:
        """End the server, and its processes."""
        self._line.close()
        self.process.wait()
        self._out.close()


_servers: dict[tuple[str, ...], ForkServer] = {}
_starting = threading.RLock()


def fork_server(modules: tuple[str, ...] = ()) -> ForkServer:
    """Return the server of this process, started at the first use, and again with a warning if it has ended.

    Args:
        modules: Imported modules besides torch; there is a server for each choice, which sees the variables
            of this process at its start.
    """
    with _starting:
        if modules in _servers and _servers[modules].process.poll() is not None:
            warnings.warn(f"The fork server of {modules} ended: {_servers[modules].ending()}", stacklevel=2)
            _servers.pop(modules).close()
        if modules not in _servers:
            _servers[modules] = ForkServer(modules, origin=fork_server() if modules else None)
        return _servers[modules]


@atexit.register
def _close_servers() -> None:
    for server in reversed(_servers.values()):
        server.close()


def fork_server_pids() -> frozenset[int]:
    """Return the process ids of the servers that were started."""
    return frozenset(server.process.pid for server in _servers.values())


def serve(*modules: str) -> None:
    """Import modules and fork for each request until the client has ended; return in the children, with it run."""
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=os.dup(0)) as line:
        line.send(b"!")
        files = _next_program(line)
    if files:
        _run(*files)


def _next_program(line: socket.socket) -> list[int]:
    """Serve until the client has ended and return nothing; in each child, return the files of the program to run."""
    reports: dict[int, Connection[int, Any]] = {}
    ends, end = socket.socketpair()
    end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(end.fileno())  # the end of a child wakes `select` up
    while True:
        ready, _, _ = select.select([line, ends], [], [])
        if ends in ready:
            ends.recv(4096)
            for pid in list(reports):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    with reports.pop(pid) as report, suppress(OSError):  # the client has ended
                        report.send(os.waitstatus_to_exitcode(status))
        if line not in ready:
            continue
        files = socket.recv_fds(line, 1, 16)[1]
        if not files:
            for pid in reports:
                try:
                    os.killpg(pid, signal.SIGKILL)
                except ProcessLookupError:  # it has not made its session yet
                    os.kill(pid, signal.SIGKILL)
            return []
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            ends.close()
            end.close()
            for report in reports.values():
                report.close()
            return files
        reports[pid] = Connection(files[0])
        for each in files[1:]:
            os.close(each)
        with suppress(OSError):
            reports[pid].send(pid)


def _run(line: int, *streams: int) -> None:
    """Run the program that the client sends as ``__main__`` of this process, with the client's standard streams."""
    os.setsid()  # Ctrl-C on the test does not reach it
    for number, stream in enumerate(streams[:3]):
        os.dup2(stream, number)
        os.close(stream)
    faulthandler.register(STACKS_SIGNAL)  # to standard error
    client: Connection[None, Any] = Connection(line)
    with client:
        (program, *arguments), environ, folder = client.recv()
    restore(environ)
    os.chdir(folder)
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    source, file_name, place = "", "<string>", ""
    if program == "-c":
        source, *arguments = arguments
    else:
        source, file_name = Path(program).read_text(encoding="utf-8"), program
        place = str(Path(program).resolve().parent)
        main.__file__ = program
    sys.argv = [program, *arguments, *map(str, streams[3:])]
    sys.path[0:1] = [place, *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.modules["__main__"] = main
    global _exit_code
    try:
        exec(compile(source, file_name, "exec"), main.__dict__)
    except SystemExit as ending:
        code = ending.code
        _exit_code = code if isinstance(code, int) else int(code is not None)  # Python prints a text
        raise
    except BaseException:
        _exit_code = 1
        raise


def end() -> None:
    """End as Python ends a script, but without freeing the libraries, unless the script is to have a complete exit."""
    if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):
        # Python's default is lost in a process that has evaluated code in an exit handler, as libraries do.
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    if snapshot().keys() & COMPLETE_EXIT.keys():
        return
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        vars(sys).pop(name, None)  # their frames hold objects of the script
    vars(sys.modules["__main__"]).clear()
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(_exit_code & 0xFF)
