"""Who am I among the processes, and what runs where."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

import accel_ops
from accel_state import AcceleratorState, PartialState
from accel_state.enums import DistributedType


class ProcessControl:
    """The Accelerator's view of the processes; `AcceleratorState` answers."""

    state: AcceleratorState
    processes: PartialState
    _trigger: bool

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self.state.device

    @property
    def distributed_type(self) -> DistributedType:
        """The kind of run, for users' code."""
        return self.state.distributed_type

    @property
    def num_processes(self) -> int:
        """Processes in the run, over all machines."""
        return self.state.num_processes

    @property
    def process_index(self) -> int:
        """Rank of this process in the run."""
        return self.state.process_index

    @property
    def local_process_index(self) -> int:
        """Rank of this process on its machine."""
        return self.state.local_process_index

    @property
    def use_distributed(self) -> bool:
        """Whether more than one process runs."""
        return self.state.use_distributed

    @property
    def multi_device(self) -> bool:
        """Whether every process has an accelerator of its own and there are several."""
        return self.use_distributed and self.device.type != "cpu"

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0."""
        return self.state.is_main_process

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is rank 0 of its machine."""
        return self.state.is_local_main_process

    @property
    def is_last_process(self) -> bool:
        """Whether this is the highest rank."""
        return self.state.is_last_process

    @property
    def mixed_precision(self) -> str:
        """The precision of forward and backward: `no`, `fp16`, `bf16` or `fp8`."""
        return self.state.mixed_precision

    def wait_for_everyone(self) -> None:
        """Block until every rank is here. Every rank must call it."""
        self.state.wait_for_everyone()

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print once per machine, as `print` does."""
        self.state.print(*args, **kwargs)

    def main_process_first(self) -> AbstractContextManager[None]:
        """Let rank 0 run the block before all others. Every rank must enter it."""
        return self.state.main_process_first()

    def local_main_process_first(self) -> AbstractContextManager[None]:
        """Let each machine's rank 0 run the block before the others there. Every rank must enter it."""
        return self.state.local_main_process_first()

    def split_between_processes(
        self, inputs: Any, apply_padding: bool = False
    ) -> AbstractContextManager[Any]:
        """Give each rank its part of `inputs`; the first ranks get one more where it does not divide.

        Args:
            inputs: A list, tuple, dict of these, tensor or data set.
            apply_padding: Repeat the last item so that every rank gets as many.
        """
        return self.state.split_between_processes(inputs, apply_padding=apply_padding)

    def on_main_process(self, function: Callable[..., Any] | None = None) -> Any:
        """Make `function` run on rank 0 only; it returns None elsewhere."""
        return self.processes.on_main_process(function)

    def on_local_main_process(self, function: Callable[..., Any] | None = None) -> Any:
        """Make `function` run on each machine's rank 0 only; it returns None elsewhere."""
        return self.processes.on_local_main_process(function)

    def on_last_process(self, function: Callable[..., Any]) -> Any:
        """Make `function` run on the highest rank only; it returns None elsewhere."""
        return self.processes.on_last_process(function)

    def on_process(self, function: Callable[..., Any] | None = None, process_index: int | None = None) -> Any:
        """Make `function` run on one rank only; it returns None elsewhere."""
        return self.processes.on_process(function, process_index=process_index)

    def on_local_process(
        self, function: Callable[..., Any] | None = None, local_process_index: int | None = None
    ) -> Any:
        """Make `function` run on one local rank of each machine only; it returns None elsewhere."""
        return self.processes.on_local_process(function, local_process_index=local_process_index)

    def set_trigger(self) -> None:
        """Raise a flag on this rank, for all ranks to see at the next `check_trigger`."""
        self._trigger = True

    def check_trigger(self) -> bool:
        """Return whether any rank raised the flag since the last check, and lower it everywhere.

        Every rank must call it; one small collective.
        """
        raised = torch.tensor(float(self._trigger), device=self.device)
        self._trigger = False
        return bool(accel_ops.reduce(raised, "sum") >= 1)

    def set_breakpoint(self) -> None:
        """Do what `set_trigger` does, under its older name."""
        self.set_trigger()

    def check_breakpoint(self) -> bool:
        """Do what `check_trigger` does, under its older name."""
        return self.check_trigger()
