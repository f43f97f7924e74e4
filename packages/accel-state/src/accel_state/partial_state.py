"""`PartialState`: the rank and the device of this process, without anything about training."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, ParamSpec, Protocol, TypeVar, overload

import torch
import torch.distributed as dist

from accel_state.delegation import delegated
from accel_state.devices.backend import current_device_backend
from accel_state.enums import DistributedType
from accel_state.errors import ConfigError
from accel_state.gradient_state import SharedState
from accel_state.group_exit import leave_group
from accel_state.lost_rank import note_wait
from accel_state.process_group import is_group_up
from accel_state.runtime import Runtime, current_runtime, get_or_create_runtime, has_runtime, reset_runtime
from accel_state.splitting import split_between_processes
from accel_state.topology import Topology

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class OnSomeRanks(Protocol):
    """A decorator that makes a function run on some ranks only and return None elsewhere."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | None]:
        """Return the decorated function."""


class ProcessView:
    """The rank and the device of this process, and functions that run on some ranks only.

    The runtime is read at every access, so that all views agree and none outlives a reset. Attributes that scripts
    assign are set on the runtime, for all views.
    """

    @property
    def _runtime(self) -> Runtime:
        return current_runtime()

    device: torch.device = delegated("_runtime.device")
    """The device of this process."""

    @property
    def num_processes(self) -> int:
        """Number of processes on all machines."""
        return self._runtime.topology.world_size

    @num_processes.setter
    def num_processes(self, num_processes: int) -> None:
        self._runtime.set_rank("world_size", num_processes)

    @property
    def process_index(self) -> int:
        """Rank of this process in the run."""
        return self._runtime.topology.rank

    @process_index.setter
    def process_index(self, process_index: int) -> None:
        self._runtime.set_rank("rank", process_index)

    @property
    def local_process_index(self) -> int:
        """Rank of this process on its machine."""
        return self._runtime.topology.local_rank

    @local_process_index.setter
    def local_process_index(self, local_process_index: int) -> None:
        self._runtime.set_rank("local_rank", local_process_index)

    @property
    def use_distributed(self) -> bool:
        """Whether there is more than one process."""
        return self._runtime.topology.world_size > 1

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0."""
        return self._runtime.topology.rank == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is rank 0 of its machine."""
        return self._runtime.topology.local_rank == 0

    @property
    def is_last_process(self) -> bool:
        """Whether this is the highest rank."""
        topology = self._runtime.topology
        return topology.rank == topology.world_size - 1

    def wait_for_everyone(self) -> None:
        """Block until every rank has called it; return at once in a single process."""
        self._runtime.await_arrival("wait_for_everyone")
        try:
            self._runtime.wait_for_everyone()
        except RuntimeError as error:
            note_wait(error, "wait_for_everyone")
            raise

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on the local main process of each machine only."""
        if self.is_local_main_process:
            builtins.print(*args, **kwargs)  # noqa: T201 -- the user prints

    def main_process_first(self) -> AbstractContextManager[None]:
        """Run the block on rank 0 first, then on all other ranks, which reuse the cache of rank 0.

            with accelerator.main_process_first():
                dataset = dataset.map(tokenize)

        Every rank must enter it.
        """
        self._runtime.await_arrival("main_process_first")
        return _first(self.is_main_process, barrier=self._runtime.wait_for_everyone)

    def local_main_process_first(self) -> AbstractContextManager[None]:
        """Run the block on each machine's rank 0 first, then on its other ranks. Every rank must enter it."""
        self._runtime.await_arrival("local_main_process_first")
        return _first(self.is_local_main_process, barrier=self._runtime.wait_for_everyone)

    def split_between_processes(self, inputs: T, apply_padding: bool = False) -> AbstractContextManager[T]:
        """Split `inputs` into one contiguous part per rank; remainders go to the first ranks.

            with accelerator.split_between_processes(prompts) as local_prompts:
                outputs = [pipeline(prompt) for prompt in local_prompts]

        Args:
            inputs: A list, a tuple, a dict of these, a tensor (split along dimension 0) or a data set.
            apply_padding: Repeat the last item so that all ranks get the same number.
        """
        topology = self._runtime.topology
        return split_between_processes(
            inputs, rank=topology.rank, world_size=topology.world_size, apply_padding=apply_padding
        )

    @overload
    def on_main_process(self, function: Callable[P, R]) -> Callable[P, R | None]: ...
    @overload
    def on_main_process(self, function: None = None) -> OnSomeRanks: ...

    def on_main_process(self, function: Callable[P, R] | None = None) -> Any:
        """Decorate `function` to run on rank 0 only; it returns None elsewhere."""
        return _only(lambda: self.is_main_process, function)

    @overload
    def on_local_main_process(self, function: Callable[P, R]) -> Callable[P, R | None]: ...
    @overload
    def on_local_main_process(self, function: None = None) -> OnSomeRanks: ...

    def on_local_main_process(self, function: Callable[P, R] | None = None) -> Any:
        """Decorate `function` to run on each machine's rank 0 only; it returns None elsewhere."""
        return _only(lambda: self.is_local_main_process, function)

    def on_last_process(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Decorate `function` to run on the last rank only; it returns None elsewhere."""
        return _only_if(lambda: self.is_last_process, function)

    @overload
    def on_process(self, function: Callable[P, R], process_index: int) -> Callable[P, R | None]: ...
    @overload
    def on_process(self, function: None = None, *, process_index: int) -> OnSomeRanks: ...

    def on_process(self, function: Callable[P, R] | None = None, process_index: int | None = None) -> Any:
        """Decorate `function` to run on rank `process_index` only; a single process runs it in any case."""
        count = self.num_processes
        index = _check_process_index("process_index", process_index, count=count)
        return _only(lambda: not self.use_distributed or self.process_index == index, function)

    @overload
    def on_local_process(
        self, function: Callable[P, R], local_process_index: int
    ) -> Callable[P, R | None]: ...
    @overload
    def on_local_process(self, function: None = None, *, local_process_index: int) -> OnSomeRanks: ...

    def on_local_process(
        self, function: Callable[P, R] | None = None, local_process_index: int | None = None
    ) -> Any:
        """Decorate `function` to run on one local rank of each machine; a single process runs it in any case."""
        count = self._runtime.topology.local_world_size
        index = _check_process_index("local_process_index", local_process_index, count=count)
        return _only(lambda: not self.use_distributed or self.local_process_index == index, function)


class ProcessState(ProcessView):
    """A `ProcessView` with the process group and the launch; the base of both state classes."""

    backend: str | None = delegated("_runtime.backend")
    """The process group's backend, None in a single process."""

    distributed_type: DistributedType = delegated("_runtime.distributed_type")
    """The type of the distributed run."""

    debug: bool = delegated("_runtime.debug")
    """Whether collectives check their inputs first (`ACCELERATE_DEBUG_MODE`)."""

    fork_launched: bool = delegated("_runtime.fork_launched")
    """Whether this process was forked from a notebook."""

    def destroy_process_group(self, group: dist.ProcessGroup | None = None) -> None:
        """Destroy a process group, the default one if none is named; nothing happens if there is none.

        Not needed at the end of a script: accel destroys the group that it set up.
        """
        is_default = group is None or group is dist.group.WORLD
        if is_default and has_runtime():
            self._runtime.has_ended = True
        if is_group_up():
            if is_default:
                leave_group()
            else:
                dist.destroy_process_group(group)

    def _lines(self) -> Iterator[str]:
        backend = f"  Backend: {self.backend}" if self.backend else ""
        yield f"Distributed environment: {self.distributed_type}{backend}"
        yield f"Num processes: {self.num_processes}"
        yield f"Process index: {self.process_index}"
        yield f"Local process index: {self.local_process_index}"
        yield f"Device: {self.device}"

    def __repr__(self) -> str:
        return "\n".join(self._lines()) + "\n"


def _collect() -> dict[str, Any]:
    if not has_runtime():
        return {}
    runtime = current_runtime()
    names = ("backend", "debug", "device", "distributed_type", "fork_launched")
    return {
        **{name: getattr(runtime, name) for name in names},
        "_cpu": runtime.is_cpu_forced,
        "local_process_index": runtime.topology.local_rank,
        "num_processes": runtime.topology.world_size,
        "process_index": runtime.topology.rank,
    }


class PartialState(ProcessState):
    """The device and the rank of this process, and how many processes there are.

    All instances show the same state; the first one builds it and, if there are several processes, sets up
    the process group, which blocks until all processes have joined.

    Args:
        cpu: Use the CPU even if there is an accelerator.
        kwargs: Arguments of `torch.distributed.init_process_group` (``backend``, ``timeout``, ``init_method``,
            …).

    Raises:
        ConfigError: If the request cannot be met: there are more processes than devices, or the backend is
            not built.
        StateError: If the state exists already and contradicts the arguments.
    """

    _shared_state: ClassVar[SharedState] = SharedState(_collect)

    def __init__(self, cpu: bool = False, **kwargs: Any) -> None:
        get_or_create_runtime(cpu=cpu, options=kwargs)

    @staticmethod
    def is_initialized() -> bool:
        """Whether the state of this process has been built."""
        return has_runtime()

    @property
    def initialized(self) -> bool:
        """Whether the state of this process has been built."""
        return has_runtime()

    @staticmethod
    def _reset_state() -> None:
        """Reset the state; the process group remains, for the next `PartialState` to adopt."""
        reset_runtime(keep_process_group=True)

    @property
    def default_device(self) -> torch.device:
        """The device that a single process gets by default."""
        backend = current_device_backend()
        return backend.place(Topology())

    def set_device(self) -> None:
        """Make this process's device torch's current one."""
        self._runtime.device_backend.set_device(self._runtime.device)


@contextmanager
def _first(is_first: bool, *, barrier: Callable[[], None]) -> Iterator[None]:
    """Run the body on the first rank, then on all others; all ranks must enter.

    An error in the body passes through, after the other ranks were released.
    """
    if not is_first:
        barrier()
    try:
        yield
    finally:
        if is_first:
            barrier()


def _only(condition: Callable[[], bool], function: Callable[P, R] | None) -> Any:
    """Return ``function``, made to run only under the condition; a decorator that does so if there is none."""
    if function is not None:
        return _only_if(condition, function)
    return lambda decorated: _only_if(condition, decorated)


def _only_if(condition: Callable[[], bool], function: Callable[P, R]) -> Callable[P, R | None]:
    """Return ``function``, made to run only if ``condition`` is true at the call, and to return None otherwise."""

    @functools.wraps(function)
    def run_if(*args: P.args, **kwargs: P.kwargs) -> R | None:
        return function(*args, **kwargs) if condition() else None

    return run_if


def _check_process_index(name: str, index: int | None, *, count: int) -> int:
    """Return ``index`` if a process of that number exists.

    Raises:
        ConfigError: If it is missing, or out of range with several processes.
    """
    if index is None:
        raise ConfigError(f"`{name}` is missing. Pass the rank of the process that runs the function.")
    if index < 0 or (count > 1 and index >= count):
        raise ConfigError(f"`{name}` must lie between 0 and {count - 1}, got {index}.")
    return index
