"""The strategy `delayed_averaging`: every process has a full replica; gradients are averaged once, after backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
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
    """Chooses the strategy: ``Accelerator(strategy_plugin=DelayedAveragingPlugin())``.

    Args:
        dtype: What gradients are sent in; None: as they are.
    """

    strategy: ClassVar[str] = "delayed_averaging"

    dtype: torch.dtype | None = None


class DelayedAveraging(Strategy):
    """Averages the gradients of all prepared models in one all-reduce, after the last backward of an accumulation."""

    name: ClassVar[str] = "delayed_averaging"
    capabilities: ClassVar[Capabilities] = Capabilities(accumulation=Sync.LATER)

    def setup(self, context: StrategyContext) -> None:
        """Take in the run."""
        super().setup(context)
        self._dtype = context.plugin.dtype if context.plugin is not None else None
        self._models: list[nn.Module] = []
        self._waits = 0

    def _parallelise(self, model: nn.Module) -> nn.Module:
        """Give all ranks the weights and buffers of rank 0. All ranks together."""
        if dist.is_initialized():  # not on one process
            with torch.no_grad():
                for tensor in (*model.parameters(), *model.buffers()):
                    dist.broadcast(tensor, src=0)
        self._models.append(model)
        return model

    def backward(self, loss: torch.Tensor, *, num_steps: int = 1, **kwargs: Any) -> None:
        """Compute gradients, and average them unless more micro-batches follow."""
        super().backward(loss, num_steps=num_steps, **kwargs)
        if not self._waits:
            self._average()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1

    def gradient_sync(self, model: nn.Module, *, sync: Sync) -> AbstractContextManager[Any]:
        """Return a context that averages gradients, or only accumulates them on this rank."""
        return self._waiting() if sync is Sync.LATER else super().gradient_sync(model, sync=sync)

    def _average(self) -> None:
        parameters = [p for model in self._models for p in model.parameters() if p.grad is not None]
        if not parameters or not dist.is_initialized():
            return
        packed = torch.cat([p.grad.flatten() for p in parameters]).to(self._dtype)
        dist.all_reduce(packed)
        packed /= dist.get_world_size()
        for parameter, mean in zip(parameters, packed.split([p.numel() for p in parameters]), strict=True):
            parameter.grad.copy_(mean.view_as(parameter))

    def release(self) -> None:
        """Release all prepared objects."""
        super().release()
        self._models.clear()
