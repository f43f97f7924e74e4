"""The program of a `Standby`, run by path with the arguments of a rank: ``standby_program.py [-m] SCRIPT ARGUMENTS…``.

It imports what the ranks have imported from site-packages, then forks a rank for each request, until the launcher
closes the connection, its standard input. A fork becomes a child of the launcher, and runs the script as a Python does
that has just started.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the folder of this file, which is not on the path of a rank

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import threading
import time
from collections.abc import Collection, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from accel_launch.installation import PACKAGES
from accel_launch.processes.parent_death import end_with_parent
from accel_launch.processes.signals import FORWARDED_SIGNALS
from accel_state.environment import recorded_reads, restore, snapshot, variable
from accel_state.imports_report import digest

READY = "ready"
_SITE_PACKAGES = {"site-packages", "dist-packages"}
_OURS = {name.replace("-", "_") for name in PACKAGES}
# Their threads, of OpenBLAS and Arrow, end before a fork and start again after it.
_WITH_THREADS = {"numpy", "scipy", "pyarrow"}
# Variables that libraries read when they are loaded, which is before the script can change them.
_OF_LIBRARIES = ("GOMP_", "KMP_", "MKL_", "OMP_", "OPENBLAS_")
_NO_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts/", "/dev/shm/")  # noqa: S108


def main() -> None:
    """Serve the launcher; return in each rank that was forked, as which this process then runs the script."""
    sys.argv = sys.argv[1:]
    with socket.socket(fileno=0) as launcher:
        modules, digests, environ, watched = _unpack(socket.recv_fds(launcher, 1, 1)[1][0])
        path = list(sys.path)
        added = {Path(each).absolute() for each in (variable("PYTHONPATH") or "").split(os.pathsep) if each}
        # There may be files of the user's.
        sys.path[:] = [each for each in path if Path(each).absolute() not in added or _is_installed(each)]
        reason = _import(modules, digests, watched)
        launcher.sendall((reason or READY).encode())
        if reason is not None:
            os._exit(0)
        sys.path[:] = [*path, *(place for place in sys.path if place not in path)]
        gc.collect()
        gc.freeze()  # a collection in a rank would copy the pages that all share
        while files := socket.recv_fds(launcher, 1, 5)[1]:
            parent = os.fork()
            if parent == 0:
                parent = os.getpid()
                if os.fork() > 0:
                    os._exit(0)
                while os.getppid() == parent:  # until the launcher has adopted this process
                    time.sleep(0.0002)
                break
            for file in files:
                os.close(file)
            os.waitpid(parent, 0)
        else:
            os._exit(0)
    _become_rank(environ, *files)


def _unpack(file: int) -> Any:
    with os.fdopen(file, "rb") as packed:
        packed.seek(0)
        return json.load(packed)


def _is_installed(place: str) -> bool:
    return not _SITE_PACKAGES.isdisjoint(Path(place).parts)


def _import(modules: Mapping[str, str], digests: Mapping[str, str], watched: Collection[str]) -> str | None:
    """Import the installed ones of ``modules``, which maps names to files; return why no rank may be forked.

    ``digests`` are those of the environment that the script has then, except for the variables that are ``watched``.
    """
    names = [name for name, file in modules.items() if _is_installed(file) or name.partition(".")[0] in _OURS]
    num_threads = _num_threads()
    for name in sorted(names, key=lambda name: name.partition(".")[0] not in _WITH_THREADS):
        changed = _changed(digests).difference(watched)
        with recorded_reads(changed.union(watched)) as reads:
            try:
                importlib.import_module(name)
            except (ImportError, KeyError) as error:
                if not reads:  # the variables that are watched are not set here
                    return f"`{name}` cannot be imported before the script: {error}"
        # What a module itself sets, or another that it imports, it sets here as well.
        if reads := reads.difference(changed) | (reads & _changed(digests)):
            why = "the script changes" if min(reads) in changed else "differs between ranks and restarts"
            return f"`{name}` reads `{min(reads)}`, which {why}, when it is imported"
        if name.partition(".")[0] in _WITH_THREADS and threading.active_count() == 1:
            num_threads = _num_threads()
        if _num_threads() > num_threads:
            return f"`{name}` starts a thread when it is imported"
        if device := _open_device():
            return f"`{name}` opens `{device}` when it is imported"
    for name, file in modules.items():
        if file and getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", file) != file:
            return f"`{name}` is `{file}` in the script, but another module for those that it has imported"
    if read := [name for name in _changed(digests).difference(watched) if name.startswith(_OF_LIBRARIES)]:
        return f"the script changes `{min(read)}`, which libraries read when they are loaded"
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return "a module that it has imported opened a process group"
    return None


def _changed(digests: Mapping[str, str]) -> set[str]:
    """Return the variables that have other values here."""
    environ = snapshot()
    return {
        name for name in environ.keys() | digests.keys() if digest(environ.get(name)) != digests.get(name, "")
    }


def _num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def _open_device() -> str | None:
    """Return a device or a connection that this process has open, which forks could not use."""
    for descriptor in Path("/proc/self/fd").iterdir():
        file = str(descriptor.resolve()).removeprefix(f"/proc/{os.getpid()}/fd/")
        is_device = file.startswith("/dev/") and not file.startswith(_NO_DEVICES)
        if is_device or (file.startswith("socket:") and descriptor.name != "0"):
            return file
    return None


def _become_rank(at_start: Mapping[str, str], request: int, report: int, *streams: int) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.orig_argv[:], environ, folder, launcher_pid, starts_session = _unpack(request)
    end_with_parent(launcher_pid)
    if starts_session:
        os.setsid()
    with socket.socket(fileno=report) as launcher:
        launcher.sendall(b"%d" % os.getpid())
        if not launcher.recv(1):  # it has waited too long, and started another process in our place
            os._exit(1)
    # What the interpreter's start and imports have set or deleted stays so.
    changes = {name: value for name, value in snapshot().items() if at_start.get(name) != value}
    deleted = at_start.keys() - snapshot().keys()
    restore({name: value for name, value in environ.items() if name not in deleted} | changes)
    os.chdir(folder)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # Python's is seeded by the fork
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)


def run() -> None:
    """Run the script as ``__main__``, as ``python`` does; an exception shows no frame of this file."""
    script, *arguments = sys.argv
    main_module = sys.modules["__main__"] = ModuleType("__main__")
    namespace = main_module.__dict__
    namespace["__builtins__"] = __builtins__
    if "__annotations__" in globals():  # Python 3.14 makes them when they are asked for
        namespace["__annotations__"] = {}
    if not sys.flags.safe_path:
        sys.path.insert(0, str(Path.cwd() if script == "-m" else Path(script).resolve().parent))
    try:
        if script == "-m":
            sys.argv = [script, *arguments[1:]]
            runpy._run_module_as_main(arguments[0])  # type: ignore[attr-defined]
        else:
            file = (
                script if script.startswith("/") else f"{Path.cwd()}/{script}"
            )  # with any `..`, as Python has it
            namespace |= {
                "__file__": file,
                "__cached__": None,
                "__loader__": SourceFileLoader("__main__", file),
            }
            exec(compile(Path(file).read_bytes(), file, "exec"), namespace)  # noqa: S102 - it is the program
    except BaseException as error:
        if not isinstance(error, SystemExit):
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            sys.excepthook(type(error), error, error.__traceback__)
            sys.excepthook = lambda *_: None
        raise


if __name__ == "__main__":
    main()
    run()
