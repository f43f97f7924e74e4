"""The learning-rate scheduler that users hold: it moves when, and only when, the optimizer really stepped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from accel_state.errors import ConfigError
from accel_state.gradient_state import current_gradient
from accel_state.runtime import current_runtime, has_runtime

SchedulerUnit = Literal["process", "optimizer_step"]


class AcceleratedScheduler:
    """Wraps a scheduler so that it follows the optimizer through accumulation and skipped steps.

    One call of `step` after a complete optimizer step moves the schedule by:

    ==================  ===================  ================
    ``scheduler_unit``  ``split_batches``    steps
    ==================  ===================  ================
    process (default)   False                ``num_replicas``
    process (default)   True                 1
    optimizer_step      either               1
    ==================  ===================  ================

    The default counts the batches that all processes together have read: a schedule written for one process
    ends after the same number of samples when each of n processes reads batches of that size. It is a trap
    where the global batch stays the same, since the schedule then runs n times too fast: choose
    ``optimizer_step``, with a schedule as long as there are optimizer steps, and the learning rate after a
    number of samples does not depend on the number of processes.

    A micro-batch that only accumulates does not change the learning rate. With ``adjust_scheduler`` of the
    accumulation plugin it is counted in the scheduler's own step counter, so that torch does not mistake it
    for a forgotten step.

    ``ReduceLROnPlateau`` takes one measurement per call, whatever the unit. Inside a loop over a prepared
    loader it follows the optimizer like any scheduler; outside of all loops, where a metric is known, each
    call counts.

    Args:
        scheduler: The scheduler to wrap; anything with ``step``, ``state_dict`` and ``load_state_dict``.
        optimizers: The prepared optimizer that it belongs to, or several; if one of them skipped, the
            schedule waits.
        step_with_optimizer: Whether it follows the optimizer; if False, each call of `step` is passed on.
        split_batches: Whether each batch is split over the processes, so that it is read once and not n
            times.
        scheduler_unit: What one step of the schedule stands for.
        num_replicas: Processes that read different data; those of the run if None.
    """

    def __init__(
        self,
        scheduler: Any,
        optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        step_with_optimizer: bool = True,
        split_batches: bool = False,
        *,
        scheduler_unit: SchedulerUnit = "process",
        num_replicas: int | None = None,
    ) -> None:
        if scheduler_unit not in get_args(SchedulerUnit):
            raise ConfigError(f"`scheduler_unit` must be process or optimizer_step, got `{scheduler_unit}`.")
        self.scheduler = scheduler
        self.optimizers = list(optimizers) if isinstance(optimizers, (list, tuple)) else [optimizers]
        self.step_with_optimizer = step_with_optimizer
        self.split_batches = split_batches
        self.scheduler_unit = scheduler_unit
        self.gradient_state = current_gradient()
        self._takes_measurements = isinstance(scheduler, ReduceLROnPlateau)
        is_once = scheduler_unit == "optimizer_step" or self._takes_measurements
        self._num_replicas = 1 if is_once else _num_replicas(num_replicas)

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Move the schedule if the optimizer really stepped; arguments go to the wrapped scheduler."""
        if not self.step_with_optimizer or (
            self._takes_measurements and not self.gradient_state.in_dataloader
        ):
            self.scheduler.step(*args, **kwargs)
            return
        if not self.gradient_state.sync_gradients:
            if self.gradient_state.adjust_scheduler and hasattr(self.scheduler, "_step_count"):
                self.scheduler._step_count += 1
            return
        for optimizer in self.optimizers:
            if getattr(optimizer, "step_was_skipped", False):
                return
        steps = 1 if self.split_batches else self._num_replicas
        for _ in range(steps):
            if self._is_finished(steps):
                return
            self.scheduler.step(*args, **kwargs)

    def _is_finished(self, steps_per_call: int) -> bool:
        # Several steps at once may overshoot the end of OneCycleLR when batches do not divide evenly. The last
        # rate that it plans has the index total_steps - 1; the next would rise again, and then it raises.
        total_steps = getattr(self.scheduler, "total_steps", None)
        last = total_steps if total_steps is None or steps_per_call == 1 else total_steps - 1
        return last is not None and self.scheduler.last_epoch >= last

    def get_last_lr(self) -> list[Any]:
        """Return the learning rates last set, one per parameter group."""
        rates: list[Any] = self.scheduler.get_last_lr()
        return rates

    def get_lr(self) -> list[Any]:
        """Return what the wrapped scheduler computes."""
        rates: list[Any] = self.scheduler.get_lr()
        return rates

    def print_lr(self, *args: Any, **kwargs: Any) -> None:
        """Print the learning rate, where the wrapped scheduler can."""
        self.scheduler.print_lr(*args, **kwargs)

    def state_dict(self) -> dict[str, Any]:
        """Return the state dict of the wrapped scheduler."""
        state: dict[str, Any] = self.scheduler.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict into the wrapped scheduler."""
        self.scheduler.load_state_dict(state_dict)

    def __getattr__(self, name: str) -> Any:
        if name == "scheduler":  # not there yet: this object is being unpickled
            raise AttributeError(name)
        return getattr(self.scheduler, name)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "gradient_state"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.gradient_state = current_gradient()


def _num_replicas(given: int | None) -> int:
    if given is not None:
        return given
    return current_runtime().layout.num_data_ranks if has_runtime() else 1
