"""Starts scripts by forking a process that has torch imported: tens of milliseconds instead of seconds.

That process forks only from its one thread, before anything has used a thread pool. A child runs its program on the
main thread of an ordinary interpreter and ends as Python ends, with exit handlers and finalization, see
`COMPLETE_EXIT`.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import importlib
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
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
_spared: dict[str, ModuleType] = {}
_ROOT = Path(__file__).resolve().parents[2]
_SERVE = "import sys; from tools.harness.fork_server import serve; serve(*sys.argv[1:])"


class ForkedProcess:
    """A running script, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, report: socket.socket) -> None:
        with report:
            self._report: Any = report.makefile("rb", buffering=0)
        self.pid = int(self._report.readline())
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
                if not wait([self._report], timeout):
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
                said = self._report.readline()  # nothing: the server was killed
                self.returncode = int(said or -signal.SIGKILL)
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
        # Without a buffer: tests wait for the output of scripts, which a buffer would delay.
        environ = {**snapshot(), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        argv = ["-c", _SERVE, *(modules if origin else PRELOADED)]
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
        ours, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile() as request:
            pickle.dump((list(argv), dict(environ), str(cwd or Path.cwd())), request)
            request.seek(0)
            files = [theirs.fileno(), request.fileno(), *(stream.fileno() for stream in streams)]
            socket.send_fds(self._line, [b"!"], files)
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
            ended = _servers.pop(modules)
            atexit.unregister(ended.close)
            warnings.warn(f"The fork server of {modules} ended: {ended.ending()}", stacklevel=2)
            ended.close()
        if modules not in _servers:
            _servers[modules] = ForkServer(modules, origin=fork_server() if modules else None)
            atexit.register(_servers[modules].close)
        return _servers[modules]


def fork_server_pids() -> frozenset[int]:
    """Return the process ids of the servers that were started."""
    return frozenset(server.process.pid for server in _servers.values())


def serve(*modules: str) -> None:
    """Import modules and fork for each request until the client has ended; return in the children, with it run."""
    # The first to be registered, and so the last to run. Python's default is lost in a process that has evaluated code
    # in an exit handler, as libraries do.
    atexit.register(_spare_libraries)
    atexit.register(_end_by_interrupt)
    for name in modules:
        importlib.import_module(name)
    _spared.update((name, module) for name, module in sys.modules.items() if _is_spared(name))
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=os.dup(0)) as line:
        line.send(b"!")
        files = _next_program(line)
    if files:
        _run(*files)


def _next_program(line: socket.socket) -> list[int]:
    """Serve until the client has ended and return nothing; in each child, return the files of the program to run."""
    reports: dict[int, int] = {}

    def report_ends(*_: object) -> None:
        while reports:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:  # this handler was interrupted by itself, and that one saw the last end
                return
            if pid == 0:
                return
            with suppress(OSError), os.fdopen(reports.pop(pid), "wb", buffering=0) as report:
                report.write(b"%d\n" % os.waitstatus_to_exitcode(status))

    signal.signal(signal.SIGCHLD, report_ends)
    while True:
        files = socket.recv_fds(line, 1, 16)[1]
        if not files:
            for pid in reports:
                try:
                    os.killpg(pid, signal.SIGKILL)
                except ProcessLookupError:  # it has not made its session yet
                    os.kill(pid, signal.SIGKILL)
            return []
        report, *rest = files
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        if (pid := os.fork()) == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            for each in (report, *reports.values()):
                os.close(each)
            return rest
        for each in rest:
            os.close(each)
        reports[pid] = report
        with suppress(OSError):  # the client has ended
            os.write(report, b"%d\n" % pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def _run(request: int, *streams: int) -> None:
    """Run a program as ``__main__`` of this process, with the client's standard streams."""
    os.setsid()  # Ctrl-C on the test does not reach it
    for number, stream in enumerate(streams[:3]):
        os.dup2(stream, number)
        os.close(stream)
    faulthandler.register(STACKS_SIGNAL)  # to standard error
    with os.fdopen(request, "rb") as file:
        (program, *arguments), environ, folder = pickle.load(file)
    if environ.keys() & COMPLETE_EXIT.keys():
        _spared.clear()
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
    exec(compile(source, file_name, "exec"), main.__dict__)


def _is_spared(name: str) -> bool:
    """Whether a module of a library is not finalized; ours are, and the one where torch keeps process groups."""
    top = name.partition(".")[0]
    is_ours = top.startswith("accel") or top == "__main__"
    return not (is_ours or top in sys.stdlib_module_names or name == "torch.distributed.distributed_c10d")


def _spare_libraries() -> None:
    """Leave libraries that were imported before the fork to the kernel: freeing them is most of what a script costs.

    What the program has imported and made is finalized.
    """
    if not _spared:
        return
    if sys.platform == "linux":
        # After Python's end, instead of the destructors of torch's tables of operators.
        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)
        libc.on_exit(libc.fcloseall, None)
    sys.setswitchinterval(1)  # no other thread imports one again in between
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_spared))
    for name in _spared:
        sys.modules.pop(name, None)


def _end_by_interrupt() -> None:
    """End as Python ends a script after an uncaught `KeyboardInterrupt`: by SIGINT."""
    if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
