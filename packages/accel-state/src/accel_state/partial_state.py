"""`PartialState`: the rank and the device of this process, without anything about training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, ParamSpec, TypeVar

import torch

from accel_state.devices.selection import current_device_backend
from accel_state.process_control import check_process_index, only_if
from accel_state.process_view import ProcessView
from accel_state.runtime import current_runtime, has_runtime, reset_runtime
from accel_state.runtime_factory import get_or_create_runtime
from accel_state.shared_state import SharedState
from accel_state.topology import Topology

P = ParamSpec("P")
R = TypeVar("R")


def _collect() -> dict[str, Any]:
    if not has_runtime():
        return {}
    runtime = current_runtime()
    return {
        "_cpu": runtime.is_cpu_forced,
        "backend": runtime.backend,
        "debug": runtime.debug,
        "device": runtime.device,
        "distributed_type": runtime.distributed_type,
        "fork_launched": runtime.fork_launched,
        "local_process_index": runtime.topology.local_rank,
        "num_processes": runtime.topology.world_size,
        "process_index": runtime.topology.rank,
    }


class PartialState(ProcessView):
    """The device and the rank of this process, and how many processes there are.

    All instances show the same state; the first one builds it and, where there are several processes, sets up
    the process group, which blocks until all have come.

    Args:
        cpu: Use the CPU even where there is an accelerator.
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
        """Tell whether the state of this process has been built."""
        return has_runtime()

    @property
    def initialized(self) -> bool:
        """Whether the state of this process has been built."""
        return has_runtime()

    @staticmethod
    def _reset_state() -> None:
        """Forget the state; the process group stays, for the next `PartialState` to take over."""
        reset_runtime(keep_process_group=True)

    @property
    def default_device(self) -> torch.device:
        """The device that a single process gets by default."""
        backend = current_device_backend()
        return backend.place(Topology())

    def set_device(self) -> None:
        """Make this process's device torch's current one."""
        self._runtime.device_backend.set_device(self._runtime.device)

    def on_main_process(self, function: Callable[P, R] | None = None) -> Any:
        """Decorate a function to run on process 0 only; elsewhere it returns None."""
        return self._only(lambda: self.is_main_process, function)

    def on_local_main_process(self, function: Callable[P, R] | None = None) -> Any:
        """Decorate a function to run on the first process of each machine only."""
        return self._only(lambda: self.is_local_main_process, function)

    def on_last_process(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Decorate a function to run on the last process only."""
        return only_if(lambda: self.is_last_process, function)

    def on_process(self, function: Callable[P, R] | None = None, process_index: int | None = None) -> Any:
        """Decorate a function to run on one process only; a single process runs it whatever the number."""
        count = self.num_processes
        index = check_process_index("process_index", process_index, count=count)
        return self._only(lambda: not self.use_distributed or self.process_index == index, function)

    def on_local_process(
        self, function: Callable[P, R] | None = None, local_process_index: int | None = None
    ) -> Any:
        """Decorate a function to run on one process of each machine; a single process runs it in any case."""
        count = self._runtime.topology.local_world_size
        index = check_process_index("local_process_index", local_process_index, count=count)
        return self._only(lambda: not self.use_distributed or self.local_process_index == index, function)

    def _only(self, condition: Callable[[], bool], function: Callable[P, R] | None) -> Any:
        if function is not None:
            return only_if(condition, function)
        return lambda decorated: only_if(condition, decorated)
