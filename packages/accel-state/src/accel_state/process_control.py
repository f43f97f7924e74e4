"""Who runs what, and when: the methods that `PartialState` and `AcceleratorState` share."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ParamSpec, TypeVar

from accel_state.errors import ConfigError
from accel_state.runtime import Runtime

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def first(is_first: bool, *, barrier: Callable[[], None]) -> Iterator[None]:
    """Run the body where ``is_first`` holds, then everywhere else; all ranks must enter.

    An error in the body passes through, but only after the others have been let go on.
    """
    if not is_first:
        barrier()
    try:
        yield
    finally:
        if is_first:
            barrier()


def main_process_first(runtime: Runtime) -> AbstractContextManager[None]:
    """Run the body on rank 0, then on the others."""
    runtime.await_arrival("main_process_first")
    return first(runtime.topology.rank == 0, barrier=runtime.wait_for_everyone)


def local_main_process_first(runtime: Runtime) -> AbstractContextManager[None]:
    """Run the body on the first process of each machine, then on the others."""
    runtime.await_arrival("local_main_process_first")
    return first(runtime.topology.local_rank == 0, barrier=runtime.wait_for_everyone)


def only_if(condition: Callable[[], bool], function: Callable[P, R]) -> Callable[P, R | None]:
    """Return ``function``, to run only where ``condition`` holds at the call and to give None elsewhere."""

    @functools.wraps(function)
    def run_if(*args: P.args, **kwargs: P.kwargs) -> R | None:
        return function(*args, **kwargs) if condition() else None

    return run_if


def check_process_index(name: str, index: int | None, *, count: int) -> int:
    """Return ``index`` if a process of that number exists.

    Raises:
        ConfigError: If it is missing, or no process will ever have it. A single process stands in for all.
    """
    if index is None:
        raise ConfigError(f"`{name}` is missing: say which process shall run the function.")
    if index < 0 or (count > 1 and index >= count):
        raise ConfigError(f"`{name}` must lie between 0 and {count - 1}, got {index}.")
    return index


def print_once(runtime: Runtime, *args: Any, **kwargs: Any) -> None:
    """Print on the first process of each machine."""
    if runtime.topology.local_rank == 0:
        builtins.print(*args, **kwargs)  # noqa: T201 -- this is what the user asked for
