"""Checks that a test leaves nothing behind in its process."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from accel_state.environment import restore, snapshot
from tools.harness.fork_server import fork_server_pids
from tools.harness.scripts import is_alive, kill_tree

# Written by pytest, coverage, and libraries at their import, in whichever test imports them first.
_IGNORED_PREFIXES = (
    "PYTEST_", "COV_", "KMP_", "TORCHINDUCTOR_", "_TORCHINDUCTOR_", "TRITON_", "CUDA_MODULE_LOADING", "TF_",
)  # fmt: skip
_END_S = 2.0
_LIVES_AS_LONG_AS_PYTHON = "resource_tracker"  # of multiprocessing
# Not SIGCHLD: torch sets a handler at the first loader with workers, and keeps it. Not SIGALRM: pytest-timeout's.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_NUM_NEW_MODULES = 100
"""Freezing costs a collection, so it waits for a large library; every test file is a module too."""
_num_modules = 0

Settings = dict[str, tuple[Any, Callable[[Any], object]]]
"""What holds for the whole process, by a name for it: the value, and what sets it."""


def freeze_imported_objects() -> None:
    """Keep the objects of imported libraries out of garbage collection, if many modules were imported since last time.

    Call it between tests, when nothing but garbage is left of the earlier ones. Without it, each
    `gc.collect` in a test takes a quarter of a second once torch and its compiler are imported.
    """
    global _num_modules
    if len(sys.modules) - _num_modules >= _NUM_NEW_MODULES:
        gc.collect()
        gc.freeze()
        _num_modules = len(sys.modules)


def reset_libraries() -> None:
    """Seed torch and NumPy, and forget what torch has compiled: no test depends on what earlier ones drew or compiled.

    A function that was compiled too often for other inputs would not be compiled again, without a word.
    """
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()


@dataclass(frozen=True, slots=True)
class ProcessSnapshot:
    """The state of this process that a test could change: variables, children, threads, settings."""

    environ: dict[str, str]
    children: frozenset[int]
    threads: frozenset[threading.Thread]
    settings: Settings

    @classmethod
    def now(cls, *, workers: frozenset[int] = frozenset()) -> ProcessSnapshot:
        """Record the state of this process, without its ``workers`` and their children, which have their own check."""
        threads = frozenset(thread for thread in threading.enumerate() if not thread.daemon)
        return cls(snapshot(), _descendants(workers), threads, _settings())

    def leaks_since(self, *, workers: frozenset[int] = frozenset()) -> list[str]:
        """Return descriptions of added resources, after waiting for those that are about to end."""
        now = ProcessSnapshot.now(workers=workers)
        added = {
            "environment variables": [
                name
                for name in sorted({*self.environ, *now.environ})
                if self.environ.get(name) != now.environ.get(name) and not name.startswith(_IGNORED_PREFIXES)
            ],
            "child processes": list(filter(None, map(_left, sorted(now.children - self.children)))),
            "threads": [thread.name for thread in now.threads - self.threads if _outlives(thread)],
            "settings": [
                name
                for name, (value, _) in self.settings.items()
                if now.settings.get(name, (value,))[0] != value
            ],
        }
        return [f"{kind}: {', '.join(names)}" for kind, names in added.items() if names]

    def put_back(self, *, workers: frozenset[int] = frozenset()) -> None:
        """Undo what can be undone, so that a test that leaks does not fail the next one."""
        now = snapshot()
        kept = {key: value for key, value in now.items() if key.startswith(_IGNORED_PREFIXES)}
        restore({**self.environ, **kept})
        for value, set_to in self.settings.values():
            set_to(value)
        for child in _descendants(workers) - self.children:
            kill_tree(child)


def _settings() -> Settings:
    """Return the settings of Python, and those of torch if it is imported."""
    found: Settings = {
        "the working folder": (Path.cwd(), os.chdir),
        "the process group": (has_process_group(), _leave_new_group),
    }
    for signum in _SIGNALS:
        if (handler := signal.getsignal(signum)) is not None:  # None: set by C code
            found[f"the handler of {signum.name}"] = (handler, partial(signal.signal, signum))
    if "torch" in sys.modules:
        import torch

        found |= {
            "the default dtype": (torch.get_default_dtype(), torch.set_default_dtype),
            "gradients": (torch.is_grad_enabled(), torch.set_grad_enabled),
            "determinism": (torch.are_deterministic_algorithms_enabled(), torch.use_deterministic_algorithms),
            "precision": (torch.get_float32_matmul_precision(), torch.set_float32_matmul_precision),
            "the number of threads": (torch.get_num_threads(), torch.set_num_threads),
            "autocast": (torch.is_autocast_enabled("cpu"), partial(torch.set_autocast_enabled, "cpu")),
        }
    return found


def _descendants(workers: frozenset[int]) -> frozenset[int]:
    """Return the ids of all descendants, zombies included, but no fork servers, and no ``workers`` and theirs."""
    left_out = workers | fork_server_pids()
    if not Path(f"/proc/self/task/{threading.get_native_id()}/children").exists():
        return frozenset(child.pid for child in psutil.Process().children(recursive=True)) - left_out
    # Called twice per test: reading these entries takes a fraction of the time that all of /proc takes.
    found: set[int] = set()
    unread = {os.getpid()}
    while unread:
        parent = unread.pop()
        for thread in _names_in(f"/proc/{parent}/task"):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                with open(f"/proc/{parent}/task/{thread}/children", "rb", buffering=0) as file:  # noqa: PTH123
                    unread |= set(map(int, file.read().split())) - workers
        found |= unread
    return frozenset(found - left_out)


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 -- half the time
    except FileNotFoundError:
        return []


def has_process_group() -> bool:
    """Return True if there is a default process group; does not import torch."""
    if "torch.distributed" not in sys.modules:
        return False
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def _leave_new_group(had_group: bool) -> None:
    if has_process_group() and not had_group:
        sys.modules["torch.distributed"].destroy_process_group()


def _left(pid: int) -> str | None:
    """Return the words for a child that outlives its test and is not meant to live as long as Python, or None."""
    try:
        child = psutil.Process(pid)
        described = f"{pid} ({' '.join(child.cmdline())[:200]})"
    except psutil.NoSuchProcess:
        return None  # it has ended, or is a zombie
    if _LIVES_AS_LONG_AS_PYTHON in described:
        return None
    psutil.wait_procs([child], timeout=_END_S)
    return described if is_alive(child) else None


def _outlives(thread: threading.Thread) -> bool:
    gc.collect()  # an executor in a cycle of references ends its threads when it is collected
    thread.join(timeout=_END_S)
    return thread.is_alive()
