"""Checks that a test leaves no resources behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from accel_state.environment import restore, snapshot
from tools.harness.scripts import is_alive

# Written by pytest, coverage, and libraries at their import, in whichever test imports them first.
_IGNORED_PREFIXES = (
    "PYTEST_",
    "COV_",
    "KMP_",
    "TORCHINDUCTOR_",
    "_TORCHINDUCTOR_",
    "TRITON_",
    "CUDA_MODULE_LOADING",
    "TF_",
)
_END_S = 2.0
# The resource tracker of multiprocessing; and the process that compiles kernels for torch's compiler, which torch 2.9
# starts when the compiler is imported.
_LIVE_AS_LONG_AS_PYTHON = ("resource_tracker", "torch/_inductor/compile_worker")
# Not SIGCHLD: torch sets a handler at the first loader with workers, and keeps it. Not SIGALRM: pytest-timeout's.
_SIGNALS = tuple(
    signal.Signals[name]
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if name in signal.Signals.__members__
)


def changed_variables(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the names of variables that were added, changed or removed, other than by libraries."""
    return sorted(
        key
        for key in {*before, *after}
        if before.get(key) != after.get(key) and not key.startswith(_IGNORED_PREFIXES)
    )


@dataclass(frozen=True, slots=True)
class ProcessSnapshot:
    """The state of this process that a test could change: variables, children, threads, signals, the process group."""

    environ: dict[str, str]
    children: frozenset[int]
    threads: frozenset[threading.Thread]
    handlers: dict[signal.Signals, Any]
    has_group: bool
    idle_pids: frozenset[int]

    @classmethod
    def now(cls, *, idle_pids: frozenset[int] = frozenset()) -> ProcessSnapshot:
        """Record the state of this process.

        Args:
            idle_pids: Child processes that start no processes until the next snapshot.
        """
        return cls(
            environ={
                key: value for key, value in snapshot().items() if not key.startswith(_IGNORED_PREFIXES)
            },
            children=_descendants(idle_pids),
            threads=frozenset(thread for thread in threading.enumerate() if not thread.daemon),
            handlers={signum: signal.getsignal(signum) for signum in _SIGNALS},
            has_group=has_process_group(),
            idle_pids=idle_pids,
        )

    def leaks_since(self, *, allowed_pids: frozenset[int] = frozenset()) -> list[str]:
        """Return descriptions of added resources, after waiting for those that are about to end."""
        now = ProcessSnapshot.now(idle_pids=self.idle_pids)
        changed = changed_variables(self.environ, now.environ)
        alive = [
            child for child in _processes(now.children - self.children - allowed_pids) if _is_left(child)
        ]
        threads = [thread for thread in now.threads - self.threads if _outlives(thread)]
        leaks = []
        if changed:
            leaks.append(f"environment variables: {', '.join(changed)}")
        if alive:
            leaks.append(f"child processes: {', '.join(_described(child) for child in alive)}")
        if threads:
            leaks.append(f"threads: {', '.join(thread.name for thread in threads)}")
        handled = [signum.name for signum in _SIGNALS if now.handlers[signum] != self.handlers[signum]]
        if handled:
            leaks.append(f"signal handlers: {', '.join(handled)}")
        if now.has_group and not self.has_group:
            leaks.append("a process group")
        return leaks

    def put_back(self, *, allowed_pids: frozenset[int] = frozenset()) -> None:
        """Undo what can be undone, so that a test that leaks does not fail the next one."""
        ignored = {key: value for key, value in snapshot().items() if key.startswith(_IGNORED_PREFIXES)}
        restore({**self.environ, **ignored})
        for signum, handler in self.handlers.items():
            if handler is not None and signal.getsignal(signum) != handler:  # None: set by C code
                signal.signal(signum, handler)
        for child in _processes(_descendants(self.idle_pids) - self.children - allowed_pids):
            if is_alive(child):
                child.kill()
        if not self.has_group and has_process_group():
            import torch.distributed as dist

            dist.destroy_process_group()


def _descendants(idle_pids: frozenset[int]) -> frozenset[int]:
    """Return the ids of all descendants of this process, zombies included.

    Descendants of ``idle_pids`` may be missing.
    """
    if not Path(f"/proc/self/task/{threading.get_native_id()}/children").exists():
        return frozenset(child.pid for child in psutil.Process().children(recursive=True))
    # Called twice per test: reading these entries takes a fraction of the time that all of /proc takes.
    found: list[int] = []
    unread = [os.getpid()]
    while unread:
        children = _children_on_linux(unread.pop())
        found += children
        unread += (child for child in children if child not in idle_pids)
    return frozenset(found)


def _children_on_linux(pid: int) -> list[int]:
    """Return the children of a process; the kernel lists them per thread."""
    children: list[int] = []
    try:
        threads = list(os.scandir(f"/proc/{pid}/task"))
    except FileNotFoundError:
        return children
    for thread in threads:
        try:
            with open(f"{thread.path}/children", "rb", buffering=0) as file:  # noqa: PTH123 -- half the time
                children += map(int, file.read().split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended since
    return children


def _processes(pids: frozenset[int]) -> list[psutil.Process]:
    """Return the processes with these ids that are still there."""
    processes = []
    for pid in sorted(pids):
        try:
            processes.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    return processes


def has_process_group() -> bool:
    """Return True if there is a default process group; does not import torch."""
    if "torch.distributed" not in sys.modules:
        return False
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def _is_left(child: psutil.Process) -> bool:
    """Return True if a child outlives its test and is not meant to live as long as Python."""
    if not is_alive(child) or any(name in _described(child) for name in _LIVE_AS_LONG_AS_PYTHON):
        return False
    psutil.wait_procs([child], timeout=_END_S)
    return is_alive(child)


def _outlives(thread: threading.Thread) -> bool:
    thread.join(timeout=_END_S)
    return thread.is_alive()


def _described(child: psutil.Process) -> str:
    try:
        return f"{child.pid} ({' '.join(child.cmdline())[:200]})"
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return str(child.pid)
