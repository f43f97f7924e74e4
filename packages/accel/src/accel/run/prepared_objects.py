"""The objects that a run has prepared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

from torch import nn

from accel.run.prepared_loaders import PreparedLoaders
from accel_backends import AcceleratedOptimizer, AcceleratedScheduler, Strategy


class PreparedObjects:
    """Models, optimizers, schedulers and loaders, each once, in the order in which they were prepared.

    Args:
        strategy: Unwraps prepared models.
    """

    def __init__(self, strategy: Strategy) -> None:
        self.models: list[nn.Module] = []
        self.optimizers: list[AcceleratedOptimizer] = []
        self.schedulers: list[AcceleratedScheduler] = []
        self.loaders = PreparedLoaders()
        self._evaluation_only: WeakSet[nn.Module] = WeakSet()
        self._strategy = strategy

    @property
    def trained_models(self) -> list[nn.Module]:
        """Models that were prepared for training, not for evaluation only."""
        return [model for model in self.models if model not in self._evaluation_only]

    def find(self, thing: object) -> Any | None:
        """Return the prepared object for `thing`, or `thing` if it is one; None if it was not prepared."""
        if isinstance(thing, nn.Module):
            return self.find_model(thing)
        for attribute, things in (("optimizer", self.optimizers), ("scheduler", self.schedulers)):
            for ready in things:
                if ready is thing or getattr(ready, attribute, None) is thing:
                    return ready
        return next((loader for loader in self.loaders if loader is thing), None)

    def find_model(self, model: nn.Module) -> nn.Module | None:
        """Return the model that was prepared from `model` for training, or `model` if it is one; else None."""
        unwrap = self._strategy.unwrap
        for ready in self.trained_models:
            inner = unwrap(ready), unwrap(ready, keep_torch_compile=False)
            if any(model is one for one in (ready, *inner)):
                return ready
        return None

    def add_models(self, models: Iterable[nn.Module], *, evaluation_only: bool = False) -> None:
        """Add models; the latest call decides whether they are for evaluation only."""
        for model in models:
            _add(self.models, model)
            (self._evaluation_only.add if evaluation_only else self._evaluation_only.discard)(model)

    def add_optimizers(self, optimizers: Iterable[Any]) -> None:
        """Add optimizers."""
        for optimizer in optimizers:
            _add(self.optimizers, optimizer)

    def add_schedulers(self, schedulers: Iterable[Any]) -> None:
        """Add schedulers."""
        for scheduler in schedulers:
            _add(self.schedulers, scheduler)

    def clear(self) -> None:
        """Forget all of them."""
        self.models.clear()
        self.optimizers.clear()
        self.schedulers.clear()
        self.loaders.clear()


def _add(things: list[Any], new: Any) -> None:
    new._is_accelerate_prepared = True  # where libraries look for it
    if not any(new is old for old in things):
        things.append(new)
