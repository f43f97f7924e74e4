"""The strategy `delayed_averaging`: every process has a full replica; gradients are averaged once, after backward."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from accel_backends.strategies.capabilities import Capabilities, Sync
from accel_backends.strategies.context import StrategyContext
from accel_backends.strategies.strategy import Strategy


@dataclass
class DelayedAveragingPlugin:
    """Chooses the strategy: ``Accelerator(strategy_plugin=DelayedAveragingPlugin())``."""

    strategy: ClassVar[str] = "delayed_averaging"


class DelayedAveraging(Strategy):
    """Averages the gradients of all prepared models in one all-reduce, after the last backward of an accumulation."""

    name: ClassVar[str] = "delayed_averaging"
    capabilities: ClassVar[Capabilities] = Capabilities(accumulation=Sync.LATER)

    def setup(self, context: StrategyContext) -> None:
        """Bind the strategy to the run."""
        super().setup(context)
        # In the order of preparation, the same on all ranks.
        self._models: weakref.WeakKeyDictionary[nn.Module, None] = weakref.WeakKeyDictionary()
        self._is_last = True

    def _parallelise(self, model: nn.Module) -> nn.Module:
        """Give all ranks the weights and buffers of rank 0. All ranks together."""
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()) if dist.is_initialized() else ():
                dist.broadcast(tensor, src=0)
        self._models[model] = None
        return model

    def backward(self, loss: torch.Tensor, *, num_steps: int = 1, **kwargs: Any) -> None:
        """Compute gradients, and average them unless more micro-batches follow."""
        super().backward(loss, num_steps=num_steps, **kwargs)
        gradients = [one.grad for model in self._models for one in model.parameters() if one.grad is not None]
        if self._is_last and gradients and dist.is_initialized():
            packed = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(packed)
            packed /= dist.get_world_size()
            for gradient, mean in zip(gradients, packed.split([g.numel() for g in gradients]), strict=True):
                gradient.copy_(mean.view_as(gradient))

    @contextmanager
    def gradient_sync(self, model: nn.Module, *, sync: Sync) -> Iterator[None]:
        """Accumulate gradients on this rank only, if ``sync`` defers their average."""
        outer, self._is_last = self._is_last, self._is_last and sync is not Sync.LATER
        try:
            yield
        finally:
            self._is_last = outer
