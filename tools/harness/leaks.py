"""Checks that a test leaves nothing behind in its process."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from accel_state.environment import restore, snapshot
from tools.harness.scripts import is_alive, kill_tree

# Written by pytest, coverage, and libraries at their import, in whichever test imports them first.
_IGNORED_PREFIXES = (
    "PYTEST_", "COV_", "KMP_", "TORCHINDUCTOR_", "_TORCHINDUCTOR_", "TRITON_", "CUDA_MODULE_LOADING", "TF_",
)  # fmt: skip
_END_S = 2.0
# The resource tracker of multiprocessing; and the process that compiles kernels for torch's compiler, which torch 2.9
# starts when the compiler is imported.
_LIVE_AS_LONG_AS_PYTHON = ("resource_tracker", "torch/_inductor/compile_worker")
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
    idle_pids: frozenset[int]

    @classmethod
    def now(cls, *, idle_pids: frozenset[int] = frozenset()) -> ProcessSnapshot:
        """Record the state of this process.

        Args:
            idle_pids: Child processes that start no processes until the next snapshot.
        """
        return cls(
            environ=snapshot(),
            children=_descendants(idle_pids),
            threads=frozenset(thread for thread in threading.enumerate() if not thread.daemon)
            - _threads_of_compiler(),
            settings=_settings(),
            idle_pids=idle_pids,
        )

    def leaks_since(self, *, allowed_pids: frozenset[int] = frozenset()) -> list[str]:
        """Return descriptions of added resources, after waiting for those that are about to end."""
        now = ProcessSnapshot.now(idle_pids=self.idle_pids)
        left = map(_left, sorted(now.children - self.children - allowed_pids))
        added = {
            "environment variables": _changed_variables(self.environ, now.environ),
            "child processes": [child for child in left if child],
            "threads": [thread.name for thread in now.threads - self.threads if _outlives(thread)],
            "settings": [
                name
                for name, (value, _) in self.settings.items()
                if now.settings.get(name, (value,))[0] != value
            ],
        }
        return [f"{kind}: {', '.join(names)}" for kind, names in added.items() if names]

    def put_back(self, *, allowed_pids: frozenset[int] = frozenset()) -> None:
        """Undo what can be undone, so that a test that leaks does not fail the next one."""
        now = snapshot()
        kept = {key: value for key, value in now.items() if key.startswith(_IGNORED_PREFIXES)}
        restore({**self.environ, **kept})
        for value, set_to in self.settings.values():
            set_to(value)
        for child in _descendants(self.idle_pids) - self.children - allowed_pids:
            kill_tree(child)


def _changed_variables(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the names of variables that were added, changed or removed, other than by libraries."""
    return sorted(
        key
        for key in {*before, *after}
        if before.get(key) != after.get(key) and not key.startswith(_IGNORED_PREFIXES)
    )


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


def _descendants(idle_pids: frozenset[int]) -> frozenset[int]:
    """Return the ids of all descendants of this process, zombies included; those of ``idle_pids`` may be missing."""
    if not Path(f"/proc/self/task/{threading.get_native_id()}/children").exists():
        return frozenset(child.pid for child in psutil.Process().children(recursive=True))
    # Called twice per test: reading these entries takes a fraction of the time that all of /proc takes.
    found: list[int] = []
    unread = [os.getpid()]
    while unread:
        children = _children(unread.pop())
        found += children
        unread += (child for child in children if child not in idle_pids)
    return frozenset(found)


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(FileNotFoundError):  # it has ended
        for thread in list(os.scandir(f"/proc/{pid}/task")):
            with suppress(FileNotFoundError, ProcessLookupError):
                with open(f"{thread.path}/children", "rb", buffering=0) as file:  # noqa: PTH123 -- half the time
                    children += map(int, file.read().split())
    return children


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
    if any(name in described for name in _LIVE_AS_LONG_AS_PYTHON):
        return None
    psutil.wait_procs([child], timeout=_END_S)
    return described if is_alive(child) else None


def _threads_of_compiler() -> frozenset[threading.Thread]:
    """Return the threads that torch's compiler keeps once it has compiled something that was not in its cache."""
    module = sys.modules.get("torch._inductor.async_compile")
    if module is None or not module.AsyncCompile.pool.cache_info().currsize:
        return frozenset()
    return frozenset(module.AsyncCompile.pool()._threads)


def _outlives(thread: threading.Thread) -> bool:
    gc.collect()  # an executor in a cycle of references ends its threads when it is collected
    thread.join(timeout=_END_S)
    return thread.is_alive()
