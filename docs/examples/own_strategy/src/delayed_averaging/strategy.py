"""The strategy `delayed_averaging`: every process has a full replica; gradients are averaged by one all-reduce."""

from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn

from accel_backends.strategies.context import StrategyContext
from accel_backends.strategies.strategy import Strategy


class DelayedAveragingPlugin:
    """Chooses the strategy: ``Accelerator(strategy_plugin=DelayedAveragingPlugin())``."""

    strategy: ClassVar[str] = "delayed_averaging"


class DelayedAveraging(Strategy):
    """Averages the gradients of all prepared models together, after each backward."""

    name: ClassVar[str] = "delayed_averaging"

    def setup(self, context: StrategyContext) -> None:
        """Bind the strategy to the run."""
        super().setup(context)
        self._models = WeakKeyDictionary[
            nn.Module, None
        ]()  # in the order of preparation, the same on all ranks

    @torch.no_grad()
    def _parallelise(self, model: nn.Module) -> nn.Module:
        """Give all ranks the weights and buffers of rank 0. All ranks together."""
        for tensor in (*model.parameters(), *model.buffers()) if dist.is_initialized() else ():
            dist.broadcast(tensor, src=0)
        self._models[model] = None
        return model

    def backward(self, loss: torch.Tensor, *, num_steps: int = 1, **kwargs: Any) -> None:
        """Compute and average gradients. All ranks together."""
        super().backward(loss, num_steps=num_steps, **kwargs)
        gradients = [one.grad for model in self._models for one in model.parameters() if one.grad is not None]
        if gradients and dist.is_initialized():
            packed = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(packed)
            means = (packed / dist.get_world_size()).split([gradient.numel() for gradient in gradients])
            for gradient, mean in zip(gradients, means, strict=True):
                gradient.copy_(mean.view_as(gradient))
