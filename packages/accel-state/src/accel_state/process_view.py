"""What `PartialState` and `AcceleratorState` have in common: a look at the runtime of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist

from accel_state import process_control
from accel_state.enums import DistributedType
from accel_state.group_exit import leave_group
from accel_state.runtime import Runtime, current_runtime
from accel_state.splitting import split_between_processes


class ProcessView:
    """Reads the runtime anew at every access, so that all views agree and none outlives a reset.

    Attributes that scripts assign are set on the runtime, for all views.
    """

    @property
    def _runtime(self) -> Runtime:
        return current_runtime()

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self._runtime.device

    @device.setter
    def device(self, device: torch.device) -> None:
        self._runtime.device = device

    @property
    def backend(self) -> str | None:
        """The process group's backend, None in a single process."""
        return self._runtime.backend

    @backend.setter
    def backend(self, backend: str | None) -> None:
        self._runtime.backend = backend

    @property
    def distributed_type(self) -> DistributedType:
        """What kind of distributed run this is."""
        return self._runtime.distributed_type

    @distributed_type.setter
    def distributed_type(self, distributed_type: DistributedType) -> None:
        self._runtime.distributed_type = distributed_type

    @property
    def num_processes(self) -> int:
        """Processes of the whole run."""
        return self._runtime.topology.world_size

    @num_processes.setter
    def num_processes(self, num_processes: int) -> None:
        self._runtime.set_rank("world_size", num_processes)

    @property
    def process_index(self) -> int:
        """This process's number among all."""
        return self._runtime.topology.rank

    @process_index.setter
    def process_index(self, process_index: int) -> None:
        self._runtime.set_rank("rank", process_index)

    @property
    def local_process_index(self) -> int:
        """This process's number among those of its machine."""
        return self._runtime.topology.local_rank

    @local_process_index.setter
    def local_process_index(self, local_process_index: int) -> None:
        self._runtime.set_rank("local_rank", local_process_index)

    @property
    def debug(self) -> bool:
        """Whether collectives check their inputs first (`ACCELERATE_DEBUG_MODE`)."""
        return self._runtime.debug

    @debug.setter
    def debug(self, debug: bool) -> None:
        self._runtime.debug = debug

    @property
    def fork_launched(self) -> bool:
        """Whether this process was forked from a notebook."""
        return self._runtime.fork_launched

    @fork_launched.setter
    def fork_launched(self, fork_launched: bool) -> None:
        self._runtime.fork_launched = fork_launched

    @property
    def use_distributed(self) -> bool:
        """Whether there is more than one process."""
        return self._runtime.topology.world_size > 1

    @property
    def is_main_process(self) -> bool:
        """Whether this is process 0."""
        return self._runtime.topology.rank == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first process of its machine."""
        return self._runtime.topology.local_rank == 0

    @property
    def is_last_process(self) -> bool:
        """Whether this is the process with the highest number."""
        topology = self._runtime.topology
        return topology.rank == topology.world_size - 1

    def wait_for_everyone(self) -> None:
        """Block until every process has called this; a single process does not wait."""
        self._runtime.await_arrival("wait_for_everyone")
        self._runtime.wait_for_everyone()

    def main_process_first(self) -> AbstractContextManager[None]:
        """Run the body of the ``with`` on process 0, then on the others; every process must enter it."""
        return process_control.main_process_first(self._runtime)

    def local_main_process_first(self) -> AbstractContextManager[None]:
        """Run the body of the ``with`` on each machine's first process, then on others; all must enter."""
        return process_control.local_main_process_first(self._runtime)

    def split_between_processes(
        self, inputs: Any, apply_padding: bool = False
    ) -> AbstractContextManager[Any]:
        """Give each process its share of ``inputs`` in the ``with``: see `accel_state.splitting`."""
        topology = self._runtime.topology
        return split_between_processes(
            inputs, rank=topology.rank, world_size=topology.world_size, apply_padding=apply_padding
        )

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on the first process of each machine."""
        process_control.print_once(self._runtime, *args, **kwargs)

    def destroy_process_group(self, group: dist.ProcessGroup | None = None) -> None:
        """Destroy a process group, the default one if none is named; nothing happens where there is none.

        Not needed at the end of a script: accel ends the group it set up by itself.
        """
        if dist.is_available() and dist.is_initialized():
            if group is None or group is dist.group.WORLD:
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
