"""The process that has torch imported and forks for each script that a test runs.

It forks only from its one thread, before anything has used a thread pool. A child runs its program on the main thread
of an ordinary interpreter and ends as Python ends, with exit handlers and finalization.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import importlib
import os
import random
import selectors
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from types import ModuleType

from accel_state.environment import restore
from tools.harness.fork_server import STACKS_SIGNAL, Request

PRELOADED = (
    "torch",
    "torch._dynamo",
    "torch.distributed.run",
    "torch.nn.parallel",
    "torch.utils.data",
    "psutil",
)
"""The imports of scripts that take most of their time. None of ours, whose imports are tested."""


class Server:
    """Forks one child per request and reports its exit code to the client."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.clients: dict[int, Connection[int, Request]] = {}
        self.wake_up, self.wake_up_by = os.pipe()
        os.set_blocking(self.wake_up_by, False)
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)
        signal.set_wakeup_fd(self.wake_up_by, warn_on_full_buffer=False)

    def serve(self) -> Request | None:
        """Serve until standard input closes and return None; in each child, return the program to run."""
        sources = selectors.DefaultSelector()
        for source in (self.listener, self.wake_up, 0):
            sources.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in sources.select():
                if key.fileobj == 0:
                    self.kill_all()
                    return None
                if key.fileobj == self.wake_up:
                    os.read(self.wake_up, 4096)
                    self.report_ends()
                else:
                    request = self.fork()
                    if request is not None:
                        sources.close()
                        return request

    def fork(self) -> Request | None:
        """Accept a request; return it in the child, None in the server."""
        client: Connection[int, Request] = Connection(self.listener.accept()[0].detach())
        try:
            request = client.recv()
            streams = [recv_handle(client) for _ in range(request.num_streams)]
        except (EOFError, ConnectionError):
            return None  # the client has timed out
        pid = os.fork()
        if pid == 0:
            self.become_child(client, streams[:3])
            return replace(request, argv=(*request.argv, *map(str, streams[3:])))
        for stream in streams:
            os.close(stream)
        self.clients[pid] = client
        with suppress(ConnectionError):
            client.send(pid)
        return None

    def become_child(self, client: Connection[int, Request], streams: list[int]) -> None:
        """Release the server's resources and use the client's standard streams."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()  # Ctrl-C on the test does not reach it
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        if STACKS_SIGNAL is not None:
            faulthandler.register(STACKS_SIGNAL)  # to standard error
        for connection in (client, *self.clients.values()):
            connection.close()
        self.listener.close()
        os.close(self.wake_up)
        os.close(self.wake_up_by)

    def report_ends(self) -> None:
        """Send the exit codes of children that have ended, as `subprocess` states them."""
        while self.clients:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            client = self.clients.pop(pid)
            with suppress(ConnectionError):  # its client may have ended
                client.send(os.waitstatus_to_exitcode(status))
            client.close()

    def kill_all(self) -> None:
        """Kill the children that still run, each with its session."""
        for pid in self.clients:
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:  # it has not made its session yet
                os.kill(pid, signal.SIGKILL)


def run(request: Request) -> None:
    """Run a program as ``__main__`` of this process."""
    restore(request.environ)
    os.chdir(request.cwd)
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    program, *arguments = request.argv
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if program == "-c":
        source, *arguments = arguments
        file, folder = "<string>", ""
    else:
        source, file, folder = (
            Path(program).read_text(encoding="utf-8"),
            program,
            str(Path(program).resolve().parent),
        )
        main.__file__ = program
    sys.argv = [program, *arguments]
    sys.path[0:1] = [folder, *filter(None, request.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.modules["__main__"] = main
    exec(compile(source, file, "exec"), main.__dict__)


def end_by_interrupt() -> None:
    """End as Python ends a script after an uncaught `KeyboardInterrupt`: by SIGINT."""
    if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def main() -> None:
    """Import torch and all that is named, and serve."""
    # The first to be registered, and so the last to run. Python's default is lost in a process that has evaluated code
    # in an exit handler, as libraries do.
    atexit.register(end_by_interrupt)
    address, *modules = sys.argv[1:]
    serve(address, *PRELOADED, *modules)


def serve(address: str, *modules: str) -> None:
    """Import modules, serve on the socket of this address, and end with standard input."""
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        os.write(1, b"ready\n")
        request = Server(listener).serve()
    if request is not None:
        run(request)


if __name__ == "__main__":
    main()
