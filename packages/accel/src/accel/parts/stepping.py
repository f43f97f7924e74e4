"""One training step: accumulate, backward, clip; `accel_backends.stepping` does the work."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

import accel_backends
from accel.configuration import RunConfiguration
from accel.profiling import traced
from accel_backends import AcceleratedOptimizer, AutocastKwargs, Precision, ProfileKwargs, Strategy
from accel_backends.stepping.stepper import Stepper
from accel_state import ConfigError, GradientState, PartialState


class Stepping:
    """Gradients: when they are synchronised, how they are scaled, clipped and applied."""

    configuration: RunConfiguration
    gradient_state: GradientState
    processes: PartialState
    _stepper: Stepper
    _strategy: Strategy
    _precision: Precision
    _optimizers: list[AcceleratedOptimizer]

    @property
    def step(self) -> int:
        """Micro-batches since the last end of a loader."""
        return self._stepper.step

    @step.setter
    def step(self, value: int) -> None:
        self._stepper.step = value

    @property
    def sync_gradients(self) -> bool:
        """Whether this micro-batch ends an accumulation: gradients are synchronised, the optimizer steps."""
        return self.gradient_state.sync_gradients

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self.gradient_state.sync_gradients = value

    @property
    def gradient_accumulation_steps(self) -> int:
        """Micro-batches whose gradients are summed before the optimizer steps."""
        return self.gradient_state.num_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value: int) -> None:
        self.gradient_state.plugin_kwargs.update({"num_steps": value})

    @property
    def can_defer_sync(self) -> bool:
        """Whether micro-batches that do not end an accumulation leave out the communication."""
        return self._stepper.can_defer_sync

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether any optimizer left out its last step, because gradients had overflown in fp16."""
        return any(optimizer.step_was_skipped for optimizer in self._optimizers)

    def accumulate(self, *models: nn.Module) -> AbstractContextManager[None]:
        """Wrap one forward and backward; the optimizer steps in every `gradient_accumulation_steps`-th block.

        The last batch of a loader ends an accumulation, unless the plugin's `sync_with_dataloader` is off.

        Args:
            *models: The prepared models that are trained in the block.
        """
        return self._stepper.accumulate(*models)

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        """Leave this rank's gradients alone in the block; a later backward outside of it synchronises all."""
        return self._strategy.gradient_sync(model, enabled=False)

    @staticmethod
    def trigger_sync_in_backward(model: nn.Module) -> AbstractContextManager[None]:
        """Synchronise `model`'s gradients in the block's backward though its forward ran under `no_sync`."""
        return accel_backends.trigger_sync_in_backward(model)

    def backward(self, loss: Tensor, *, num_items: float | Tensor | None = None, **kwargs: Any) -> None:
        """Compute gradients of `loss`, divided by the number of accumulation steps and scaled for fp16.

        Args:
            loss: A 0-dim tensor, the mean over this rank's micro-batch.
            num_items: How many items (samples, tokens, pixels) the loss is a mean over. With it, gradients
                are those of one batch of all items of all micro-batches and ranks, however unequal their
                sizes. Without it, every micro-batch counts the same, so that items of a short one count for
                more. Give it in all micro-batches or in none; then every rank must call `backward` as often,
                once in each `accumulate` block.
            **kwargs: Passed to `Tensor.backward` or the engine's own.

        Raises:
            ConfigError: If `num_items` is negative, not finite, or the engine weighs losses by itself.
            StateError: If only some micro-batches of an accumulation have `num_items`, or one has it twice.
        """
        self._stepper.backward(loss, num_items, **kwargs)

    def lomo_backward(self, loss: Tensor, learning_rate: float) -> None:
        """Compute gradients and update each parameter as soon as its gradient is there, which is then freed.

        For optimizers with a `fused_backward`, such as those of the package `lomo_optim`. They update before
        gradients could be averaged, so with one process only.

        Raises:
            ConfigError: With several processes, or if no prepared optimizer can do that.
        """
        if self.processes.use_distributed:
            raise ConfigError(
                "`lomo_backward` updates parameters before their gradients are averaged over processes, which "
                "would then train models of their own. Start one process, or use another optimizer."
            )
        self._stepper.fused_backward(loss, learning_rate)

    def unscale_gradients(
        self, optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None = None
    ) -> None:
        """Divide the fp16 scale out of the gradients, once per step; nothing to do in other precisions.

        Args:
            optimizer: The prepared optimizers whose gradients are meant; all where not given.
        """
        self._stepper.unscale_gradients(optimizer)

    def clip_grad_norm_(
        self, parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2
    ) -> Tensor | None:
        """Scale gradients down so that their norm over all `parameters` is at most `max_norm`.

        In a micro-batch that only accumulates they stay as they are, as the optimizer does: a limit on parts
        of a sum would not be one on the sum.

        Returns:
            The norm before clipping, a 0-dim tensor; None where an engine keeps it to itself.
        """
        return self._stepper.clip_grad_norm(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
        """Clamp every gradient into ``[-clip_value, clip_value]``, once they are complete."""
        self._stepper.clip_grad_value(parameters, clip_value)

    def autocast(self, autocast_handler: AutocastKwargs | None = None) -> AbstractContextManager[Any]:
        """Run the block in the run's precision, as the prepared models' forward does by itself."""
        return self._precision.autocast(autocast_handler)

    def profile(
        self, profile_handler: ProfileKwargs | None = None
    ) -> AbstractContextManager[torch.profiler.profile]:
        """Profile the block; with `output_trace_dir`, every rank leaves a Chrome trace there.

        With `schedule_option`, call `step()` of what the block gives after every step; each cycle of the
        schedule leaves a trace.

        Args:
            profile_handler: What to record; where left out, the handler given to the Accelerator.
        """
        handler = profile_handler or self.configuration.handlers.get(ProfileKwargs) or ProfileKwargs()
        assert isinstance(handler, ProfileKwargs)
        return traced(handler, rank=self.processes.process_index)
