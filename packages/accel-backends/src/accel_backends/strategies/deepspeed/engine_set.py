"""The engines of one run: which of them a loss reaches, and what is done to them together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from accel_backends.strategies.deepspeed.reached import reached_by
from accel_backends.strategies.deepspeed.wrappers import DeepSpeedEngineWrapper, Window
from accel_state.errors import ConfigError
from accel_state.gradient_state import GradientState


class EngineSet:
    """The engines that train, in the order in which they were made, and those that only compute outputs."""

    def __init__(self) -> None:
        self._trained: list[DeepSpeedEngineWrapper] = []
        self._evaluated: list[Any] = []

    def __iter__(self) -> Iterator[DeepSpeedEngineWrapper]:
        return iter(self._trained)

    def add(self, engine: DeepSpeedEngineWrapper) -> None:
        """Add an engine that trains."""
        self._trained.append(engine)

    def add_evaluated(self, engine: Any) -> None:
        """Add an engine without an optimizer."""
        self._evaluated.append(engine)

    def bare(self, model: nn.Module) -> nn.Module:
        """Return the model of an engine; another model as it is."""
        inside: list[nn.Module] = [one.module for one in self.all() if id(one) == id(model)]
        return inside[0] if inside else model

    def end(self, model: nn.Module) -> None:
        """End the engine that ``model`` has, if it has one: a model has one at a time."""
        for engine in self.all():
            if engine.module is model:
                engine.destroy()
        self._trained = [one for one in self._trained if one.engine.module is not model]
        self._evaluated = [one for one in self._evaluated if one.module is not model]

    def clear(self) -> None:
        """End all."""
        for engine in self.all():
            engine.destroy()
        self._trained.clear()
        self._evaluated.clear()

    def of(self, models: Iterable[nn.Module]) -> list[DeepSpeedEngineWrapper]:
        """Return the engines that train any of ``models``, which may be engines or what is in them."""
        wanted = {id(model) for model in models}
        return [one for one in self._trained if {id(one.engine), id(one.engine.module)} & wanted]

    def backward(self, loss: torch.Tensor, *, is_last: bool, **kwargs: Any) -> None:
        """Compute gradients of ``loss`` in all engines that it reaches.

        Raises:
            ConfigError: If it reaches none, or several of which one has no ZeRO or scales its loss.
        """
        reached = self._reached(loss)
        if not reached:
            raise ConfigError(
                "`backward` got a loss that no model prepared with an optimizer was used for. DeepSpeed trains the "
                "models that `prepare` got together with their optimizer: call what it returned."
            )
        if len(reached) > 1:
            _check_joint(reached)
        first, *others = reached
        for other in others:  # their hooks do in the backward of the first what their own backward would
            other.begin_backward(is_last=is_last)
        first.backward(loss, sync_gradients=is_last, **kwargs)

    def _reached(self, loss: torch.Tensor) -> list[DeepSpeedEngineWrapper]:
        if len(self._trained) <= 1:
            return list(self._trained)
        owners = {
            id(parameter): index
            for index, one in enumerate(self._trained)
            for parameter in one.engine.module.parameters()
        }
        return [self._trained[index] for index in sorted(reached_by(loss, owners))]

    def clip(self, parameters: Iterable[torch.Tensor] | torch.Tensor, max_norm: float) -> torch.Tensor | None:
        """Let the next step of the engines of ``parameters`` clip by their common norm, and return that norm.

        Raises:
            ConfigError: If not all and only trained parameters of engines are given, or one computes no norm.
        """
        chosen = self._engines_of([parameters] if isinstance(parameters, torch.Tensor) else parameters)
        complete = [one for one in chosen if one.window is Window.COMPLETE]
        norms = [one.grad_norm() for one in complete]
        known = [norm for norm in norms if norm is not None]
        if len(known) < len(norms):
            raise ConfigError(
                "`clip_grad_norm_` needs the norm, which the DeepSpeed config tells the engine not to compute. Set "
                "`zero_optimization.compute_grad_norm` to true."
            )
        if not known:
            return None
        total = torch.linalg.vector_norm(torch.stack(known)) if len(known) > 1 else known[0]
        for one, norm in zip(complete, known, strict=True):
            # An engine clips by its own norm: the share of it in the limit is that in the whole norm.
            share = 1.0 if len(known) == 1 else float(norm / total)
            one.limit_grad_norm(0.0 if math.isinf(max_norm) else max_norm * share, asked=max_norm)
        return total

    def _engines_of(self, parameters: Iterable[torch.Tensor]) -> list[DeepSpeedEngineWrapper]:
        given = {id(parameter) for parameter in parameters if parameter.requires_grad}
        known = {id(parameter) for one in self._trained for parameter in one.engine.module.parameters()}
        if not given or given - known:
            raise ConfigError(
                f"`clip_grad_norm_` got {len(given & known)} parameters of models that DeepSpeed trains and "
                f"{len(given - known)} other tensors, such as flat ones of its optimizer. Pass `model.parameters()`."
            )
        chosen = []
        for one in self._trained:
            own = {id(parameter) for parameter in one.engine.module.parameters() if parameter.requires_grad}
            if not own & given:
                continue
            if own - given:
                raise ConfigError(
                    f"`clip_grad_norm_` got {len(own & given)} of the {len(own)} trained parameters of a model that "
                    "DeepSpeed trains, whose engine clips all of them together. Pass `model.parameters()`."
                )
            chosen.append(one)
        return chosen

    def check_accumulation(self, num_steps: int, gradient: GradientState) -> None:
        """Let ``num_steps`` of an engine's config be the number of micro-batches that is counted to.

        Raises:
            ConfigError: If another engine counts to another number.
        """
        if self._trained and gradient.num_steps != num_steps:
            raise ConfigError(
                f"`gradient_accumulation_steps` is {num_steps} in the DeepSpeed config of this model, but "
                f"{gradient.num_steps} for the model prepared before; one `Accelerator` counts for both. Use the "
                "same number, or a second `Accelerator()`."
            )
        gradient.plugin_kwargs["num_steps"] = num_steps

    def all(self) -> list[Any]:
        """Return DeepSpeed's engines, in the order in which they were made, those that train first."""
        return [*(one.engine for one in self._trained), *self._evaluated]


def _check_joint(engines: Iterable[DeepSpeedEngineWrapper]) -> None:
    for engine in (one.engine for one in engines):
        if engine.fp16_enabled() or not engine.zero_optimization():
            raise ConfigError(
                f"`backward` got one loss of several models, but `{type(engine.module).__name__}` has `fp16.enabled` "
                f"{engine.fp16_enabled()} and ZeRO stage {engine.zero_optimization_stage():d}, where DeepSpeed needs a "
                "loss for each model. Compute one for each, or use ZeRO 1, 2 or 3 in bf16 or fp32."
            )
