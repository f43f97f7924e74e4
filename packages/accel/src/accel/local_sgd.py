"""Local SGD: every rank trains separately for some steps, then the weights of all ranks are averaged.

Stich, "Local SGD Converges Fast and Communicates Little", https://arxiv.org/abs/1805.09767
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

import torch
from torch import nn

from accel.accelerator import Accelerator
from accel_backends.strategies.capabilities import Feature
from accel_ops import reduce
from accel_state import DistributedType
from accel_state.errors import ConfigError

__all__ = ["Accelerator", "DistributedType", "LocalSGD"]


class LocalSGD:
    """Leaves each rank's gradients unsynchronized, and averages the weights of all ranks every `local_sgd_steps` steps.

        with LocalSGD(accelerator, model, local_sgd_steps=8) as local_sgd:
            for inputs, targets in loader:
                accelerator.backward(loss_fn(model(inputs), targets))
                optimizer.step()
                optimizer.zero_grad()
                local_sgd.step()

    Every rank must enter and leave the block: at its end the ranks communicate.

    Args:
        accelerator: The accelerator that prepared `model`.
        model: The prepared model.
        local_sgd_steps: Calls of `step` from one averaging to the next.
        enabled: If False, gradients are synchronized as usual, and `step` does nothing.

    The weights are averaged once more at the end of the block. With one process the block changes nothing.
    Parameters may not be added or removed inside the block, as with DDP.

    Raises:
        ConfigError: If the strategy does not replicate the model on every rank, or the steps are below 1.
    """

    def __init__(
        self, accelerator: Accelerator, model: nn.Module, local_sgd_steps: int, enabled: bool = True
    ) -> None:
        if local_sgd_steps < 1:
            raise ConfigError(f"`local_sgd_steps` must be at least 1, got {local_sgd_steps}.")
        self.enabled = enabled and accelerator.use_distributed
        if self.enabled:
            strategy = accelerator.strategy
            strategy.capabilities.check(Feature.LOCAL_SGD, strategy=strategy.name)
        self.accelerator = accelerator
        self.model = model
        self.local_sgd_steps = local_sgd_steps
        self.num_steps = 0
        self._block = ExitStack()

    def __enter__(self) -> LocalSGD:
        if self.enabled:
            self._block.enter_context(self.accelerator.no_sync(self.model))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._block.close()
        if self.enabled and kind is None:
            self.average()

    def step(self) -> None:
        """Count one step, and average if due. Every rank must call it equally often."""
        self.num_steps += 1
        if self.enabled and self.num_steps % self.local_sgd_steps == 0:
            self.average()

    @torch.no_grad()
    def average(self) -> None:
        """Set the weights on every rank to their mean over all ranks. Every rank must call it."""
        weights: list[torch.Tensor] = [
            weight for weight in self.model.parameters() if weight.is_floating_point()
        ]
        torch._foreach_copy_(weights, reduce(weights, "mean"))  # few kernels; it has no public name
