"""What stands between a training loop and Megatron-LM's optimizer and schedule, and in place of a schedule before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from accel_backends.optimizer import AcceleratedOptimizer
from accel_backends.scheduler import AcceleratedScheduler
from accel_backends.strategies.megatron.engine import MegatronEngine
from accel_backends.strategies.megatron.states import load_optimizer_state
from accel_state.errors import StateError


class MegatronLMDummyScheduler:
    """Says how long the schedule is that `prepare` makes, in steps of the optimizer.

    Args:
        optimizer: The optimizer.
        total_num_steps: Steps over which the learning rate decays, where the plugin does not say it.
        warmup_num_steps: Steps over which it grows before, likewise.
        **kwargs: Kept as the attribute ``kwargs``.
    """

    def __init__(
        self, optimizer: Any, total_num_steps: int | None = None, warmup_num_steps: int = 0, **kwargs: Any
    ) -> None:
        self.optimizer = optimizer
        self.total_num_steps = total_num_steps
        self.warmup_num_steps = warmup_num_steps
        self.kwargs = kwargs

    if TYPE_CHECKING:  # `prepare` returns a scheduler for it

        def __getattr__(self, name: str) -> Any: ...


class MegatronLMOptimizerWrapper(AcceleratedOptimizer):
    """The optimizer of a model of megatron-core.

    Args:
        optimizer: A `megatron.core.optimizer.MegatronOptimizer`.
        engine: The model that it steps.
        client: The optimizer that the user made.
    """

    def __init__(
        self,
        optimizer: Any,
        *,
        engine: MegatronEngine | None = None,
        client: torch.optim.Optimizer | None = None,
    ) -> None:
        super().__init__(optimizer, device_placement=False, scaler=None)
        self.engine = engine
        self.client = client

    @property
    def user_optimizer(self) -> torch.optim.Optimizer | None:  # type: ignore[override]
        """The optimizer that the user made."""
        return self.client

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Clip and step, if there are gradients.

        Raises:
            StateError: With a ``closure``.
        """
        if closure is not None:
            raise StateError("Megatron-LM's optimizer cannot step with a `closure`. Call it without.")
        if self.engine is None or not self.engine.has_gradients:
            return
        self._is_overflow = not self.engine.step_optimizer()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what a checkpoint had of the state; nothing where it was to be left out."""
        if state_dict:
            load_optimizer_state(self.optimizer, dict(state_dict))

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Forget gradients that were not stepped."""
        if self.engine is not None and self.engine.has_gradients:
            self.engine.discard_gradients()


class MegatronLMSchedulerWrapper(AcceleratedScheduler):
    """A `megatron.core.optimizer_param_scheduler.OptimizerParamScheduler`, which follows its optimizer.

    Args:
        scheduler: The scheduler.
        optimizers: The prepared optimizer that it belongs to.
    """

    def __init__(self, scheduler: Any, optimizers: Any) -> None:
        super().__init__(scheduler, optimizers, num_replicas=1)

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Move on by a step, unless the optimizer skipped its own."""
        if not any(getattr(one, "step_was_skipped", False) for one in list(self.optimizers)):
            self.scheduler.step(1)

    def get_last_lr(self) -> list[Any]:
        """Return the learning rates last set, one per parameter group."""
        return [group["lr"] for group in self.scheduler.optimizer.param_groups]
