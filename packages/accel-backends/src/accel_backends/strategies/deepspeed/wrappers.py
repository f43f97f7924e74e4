"""What stands between a training loop and DeepSpeed's engine, so that each call of the loop does what it says."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import torch

from accel_backends.optimizer import AcceleratedOptimizer
from accel_backends.scheduler import AcceleratedScheduler
from accel_backends.strategies.deepspeed.checkpoints.flat_groups import stepping_optimizer
from accel_backends.strategies.deepspeed.dummies import DummyOptim
from accel_backends.strategies.deepspeed.engine_gradients import gradients_of
from accel_state.errors import StateError
from accel_state.user_warnings import warn_user


class Window(enum.Enum):
    """Where the gradients of an engine stand."""

    EMPTY = "empty"
    """There are none."""
    OPEN = "open"
    """Some micro-batches of an accumulation have had their backward."""
    COMPLETE = "complete"
    """All have; the next call is a step, or an end without one."""


class DeepSpeedEngineWrapper:
    """An engine that trains: its backward and its step are two calls, and it knows what is due.

    DeepSpeed counts micro-batches by itself. Here the caller says in each backward whether it ends an accumulation,
    which also is how the last batches of an epoch are not carried into the next.

    Args:
        engine: A `deepspeed.DeepSpeedEngine` with an optimizer.
    """

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.window = Window.EMPTY
        self.step_was_skipped = False
        self._gradients = gradients_of(engine)
        self._has_warned = False

    def begin_backward(self, *, is_last: bool) -> None:
        """Prepare for a backward of which this engine is a part.

        Raises:
            StateError: If complete gradients still wait for their step.
        """
        if self.window is Window.COMPLETE:
            raise StateError(
                "DeepSpeed's engine got a second `backward` after the one that completed its gradients. Call "
                "`optimizer.step()` or `optimizer.zero_grad()` in between. To accumulate gradients, put each "
                "micro-batch into `with accelerator.accumulate(model):`; losses of one batch are added up."
            )
        self.engine.set_gradient_accumulation_boundary(is_last)
        # Hooks of DeepSpeed up to 0.19.5 divide the gradients of a loss that another engine's `backward` got.
        self.engine._scale_wrt_gas = False
        self.window = Window.COMPLETE if is_last else Window.OPEN

    def backward(self, loss: torch.Tensor, sync_gradients: bool = True, **kwargs: Any) -> None:
        """Compute gradients of ``loss``, and complete those of the accumulation if ``sync_gradients``.

        The loss is taken as it is: who knows the number of micro-batches has divided it.
        """
        self.begin_backward(is_last=sync_gradients)
        self.engine.backward(loss, scale_wrt_gas=False, **kwargs)

    def step(self) -> None:
        """Step the optimizer, and a scheduler of the config, if there are complete gradients; else do nothing.

        Raises:
            StateError: If there are gradients that are not complete.
        """
        if self.window is Window.EMPTY:
            return
        if self.window is Window.OPEN:
            raise StateError(
                "`optimizer.step()` was called while the gradients of DeepSpeed's engine were not complete: the last "
                "`backward` ran under `no_sync`. Let the last micro-batch of a step run outside of it."
            )
        self.engine.step()
        self._gradients.stepped()
        self.window = Window.EMPTY
        self.step_was_skipped = not self.engine.was_step_applied()

    def zero_grad(self) -> None:
        """Forget all gradients that have not been stepped."""
        if self.window is not Window.EMPTY:
            self._gradients.discard()
            self._gradients.stepped()
            self.window = Window.EMPTY

    def grad_norm(self) -> torch.Tensor | None:
        """Return the 2-norm of the complete gradients, which the next step will use. Communicates: all ranks.

        None where there are none, and where the config tells the engine not to compute it.
        """
        if self.window is not Window.COMPLETE:
            return None
        norm = self._gradients.norm()
        # What `get_global_grad_norm` returns, which otherwise was that of the step before.
        self.engine._global_grad_norm = norm
        return norm

    def limit_grad_norm(self, limit: float, *, asked: float) -> None:
        """Let the next step clip to this norm, instead of the config's; ``asked`` is what the script said."""
        configured = self._gradients.configured_limit
        if configured and configured != asked and not self._has_warned:
            self._has_warned = True
            warn_user(
                f"`clip_grad_norm_` clips to {asked}, the DeepSpeed config to {configured}; the script's holds. "
                "Say it in one place.",
            )
        self._gradients.limit(limit)

    def scale_gradients(self, factor: float) -> None:
        """Multiply the complete gradients."""
        self._gradients.scale(factor)

    def get_global_grad_norm(self) -> Any:
        """Return the norm of the gradients that were measured last, None before the first step."""
        norm = self.engine.get_global_grad_norm()
        return norm.item() if hasattr(norm, "item") else norm

    def destroy(self) -> None:
        """Take the engine's hooks off the model, which may then get another engine."""
        self.engine.destroy()


class DeepSpeedOptimizerWrapper(AcceleratedOptimizer):
    """The optimizer of an engine, which steps when `step` is called.

    Args:
        optimizer: The engine's own optimizer.
        engine: The engine; without one nothing can be stepped.
        client: The optimizer that the user handed over, where there was one.
    """

    def __init__(
        self,
        optimizer: Any,
        engine: DeepSpeedEngineWrapper | None = None,
        client: torch.optim.Optimizer | None = None,
    ) -> None:
        super().__init__(optimizer, device_placement=False, scaler=None)
        self.engine = engine
        self.client: Any = client

    @property
    def engine_optimizer(self) -> torch.optim.Optimizer | None:  # type: ignore[override]
        """The optimizer that steps the values in the engine."""
        return None if self.engine is None else stepping_optimizer(self.engine.engine)

    @property
    def user_optimizer(self) -> torch.optim.Optimizer | None:  # type: ignore[override]
        """The optimizer that the user made, also where DeepSpeed steps another one on the CPU."""
        return None if isinstance(self.client, DummyOptim) else self.client

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step if this micro-batch completes the gradients; else do nothing.

        Raises:
            StateError: With a ``closure``, which DeepSpeed cannot evaluate.
        """
        if closure is not None:
            raise StateError(
                "DeepSpeed's engine cannot step with a `closure`. Use an optimizer that needs none."
            )
        if self.engine is not None and self.gradient_state.sync_gradients:
            self.engine.step()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, where the engine's optimizer can.

        Raises:
            StateError: If it is one of ZeRO.
        """
        if not hasattr(self.optimizer, "add_param_group"):
            raise StateError(
                "DeepSpeed's ZeRO takes no parameters after `prepare`. Give all to the optimizer before, and set "
                "`lr` of their group to 0 until they are trained."
            )
        super().add_param_group(param_group)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Forget gradients that were not stepped, if this micro-batch completed them; else do nothing."""
        if self.engine is not None and self.gradient_state.sync_gradients:
            self.engine.zero_grad()

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last step left the parameters as they were, because gradients were not finite."""
        return self.engine is not None and self.engine.step_was_skipped


class DeepSpeedSchedulerWrapper(AcceleratedScheduler):
    """A scheduler that the engine steps by itself, as often as the optimizer really steps.

    Args:
        scheduler: The engine's scheduler.
        optimizers: The prepared optimizer that it belongs to.
    """

    def __init__(self, scheduler: Any, optimizers: Any) -> None:
        super().__init__(scheduler, optimizers, num_replicas=1)

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the engine has stepped it."""
