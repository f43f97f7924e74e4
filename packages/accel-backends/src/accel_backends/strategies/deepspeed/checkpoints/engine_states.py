"""The states of models and optimizers that DeepSpeed's engines hold, as every strategy offers them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from accel_backends.strategies.deepspeed.checkpoints import model_state, optimizer_state
from accel_backends.strategies.deepspeed.checkpoints.flat_groups import (
    has_fp32_copies,
    has_swapped_states,
    stepping_optimizer,
)
from accel_backends.strategies.strategy import Strategy
from accel_backends.unwrap import inner_optimizer


class EngineStates(Strategy):
    """Gives and takes states one tensor at a time, and saves them in DeepSpeed's own files.

    A model that has no engine is treated as any other.
    """

    @property
    def checkpoint_format(self) -> str:
        """The format in which models and optimizers are saved: what DeepSpeed writes, if it can go on from it."""
        is_in_its_files = self.context.layout.tp == 1 and not any(
            has_swapped_states(one) or has_fp32_copies(one) for one in self.live_engines()
        )
        return "deepspeed" if is_in_its_files else "full"

    def live_engines(self) -> Iterable[Any]:
        """Return the `deepspeed.DeepSpeedEngine`s of the run."""
        raise NotImplementedError

    def model_tensors(
        self, model: nn.Module, *, to_fill: bool = False, as_computed: bool = False
    ) -> dict[str, Any]:
        """Return the state with parameters that all ranks fetch together, as fp32 where the optimizer steps them so.

        ``as_computed``: in the dtypes in which the model computes.
        """
        engine = self._engine_of(model)
        if engine is None:
            return super().model_tensors(model, to_fill=to_fill, as_computed=as_computed)
        return model_state.local_model_state(engine, in_training_precision=as_computed)

    def load_model_state(self, model: nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> Any:
        """Load a whole state, of which every rank takes its parts. All ranks must call it."""
        engine = self._engine_of(model)
        if engine is None:
            return super().load_model_state(model, state, strict=strict)
        return model_state.load_model_state(engine, state, strict=strict)

    def optimizer_tensors(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the state with tensors that all ranks fetch together."""
        engine = self._engine_with(optimizer)
        if engine is None:
            return super().optimizer_tensors(optimizer)
        return optimizer_state.local_optimizer_state(engine)

    def optimizer_parameters(
        self, optimizer: torch.optim.Optimizer, models: Sequence[nn.Module]
    ) -> list[dict[str | int, Any]]:
        """Return deferred tensors by the names of the parameters."""
        engine = self._engine_with(optimizer)
        if engine is None:
            return super().optimizer_parameters(optimizer, models)
        return optimizer_state.stepped_parameters(engine)

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Load a whole state, of which every rank takes its parts."""
        engine = self._engine_with(optimizer)
        if engine is None:
            super().load_optimizer_state(optimizer, state)
        else:
            optimizer_state.load_optimizer_state(engine, state)

    def _engine_of(self, model: nn.Module) -> Any | None:
        """Return the engine of a user's model; None if it has none."""
        for engine in self.live_engines():
            if self.unwrap(engine, keep_torch_compile=False) is model:
                return engine
        return None

    def _engine_with(self, optimizer: torch.optim.Optimizer) -> Any | None:
        """Return the engine of an optimizer, given as it was prepared or as it is inside."""
        wanted = {id(optimizer), id(inner_optimizer(optimizer))}
        for engine in self.live_engines():
            if wanted & {id(engine.optimizer), id(stepping_optimizer(engine))}:
                return engine
        return None
