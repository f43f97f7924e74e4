"""The states of a model of megatron-core and its optimizer, as megatron-core describes them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from accel_backends.strategies.megatron.checkpoint_format import ShardedState
from accel_backends.strategies.megatron.engine import MegatronEngine
from accel_backends.strategies.megatron.packages import core

_METADATA = {"distrib_optim_sharding_type": "fully_reshardable", "chained_optim_avoid_prefix": True}
"""How a distributed optimizer describes its state: as whole parameters have it, for any number of ranks."""


def bare_parts(engine: MegatronEngine) -> list[nn.Module]:
    """Return this rank's parts of the model, without what computes in 16 bits and reduces gradients."""
    bare: list[nn.Module] = core("utils").unwrap_model(engine.chunks)
    return bare


def model_state(engine: MegatronEngine) -> ShardedState:
    """Return the state of the model."""

    def load(values: dict[str, Any]) -> None:
        for number, part in enumerate(bare_parts(engine)):
            part.load_state_dict(values[f"part_{number}"])
        if engine.optimizer is not None:
            engine.optimizer.reload_model_params()

    return ShardedState(lambda is_loading: _describe(engine), load)


def optimizer_state(engine: MegatronEngine) -> ShardedState:
    """Return the state of the optimizer. Communicates: all ranks, with a distributed optimizer."""

    def describe(is_loading: bool) -> dict[str, Any]:
        _begin(engine.optimizer)
        parts = _describe(engine)
        named = parts["part_0"] if len(parts) == 1 else parts
        description: dict[str, Any] = engine.optimizer.sharded_state_dict(
            named, is_loading=is_loading, metadata=_METADATA
        )
        return description

    return ShardedState(
        describe,
        partial(load_optimizer_state, engine.optimizer),
        is_saved=not engine.plugin.no_save_optim,
        is_loaded=not engine.plugin.no_load_optim,
    )


def load_optimizer_state(optimizer: Any, values: dict[str, Any]) -> None:
    """Load what `optimizer_state` describes.

    megatron-core 0.16 keeps the number of steps in the state of torch's Adam, but does not look for it elsewhere when
    it loads the parameters' states of a distributed optimizer: these are loaded without it.
    """
    parameters = values.get("param_state")
    if parameters is None:
        optimizer.load_state_dict(values)
        return
    (one,) = optimizer.chained_optimizers
    optimizer.load_state_dict(
        {name: value for name, value in values.items() if not name.startswith("param_state")}
    )
    states = one.optimizer.state.values()
    steps = [state.pop("step", None) for state in states]
    one.load_parameter_state_from_fully_reshardable(parameters)
    for state, step in zip(states, steps, strict=True):
        if step is not None:
            state["step"] = (
                step.clone()
            )  # megatron-core gives all parameters one tensor, which each then counts up


def _begin(optimizer: Any) -> None:
    """Give parameters that were never stepped the state of the first step.

    megatron-core 0.16 cannot describe a distributed optimizer without it, where it has torch's Adam.
    """
    for one in optimizer.chained_optimizers:
        inner = one.optimizer
        if isinstance(inner, (torch.optim.Adam, torch.optim.AdamW)):
            for parameter in (each for group in inner.param_groups for each in group["params"]):
                if not inner.state[parameter]:
                    zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                    inner.state[parameter] = {"step": torch.zeros(()), **zeros}


def _describe(engine: MegatronEngine) -> dict[str, Any]:
    return {
        f"part_{number}": part.sharded_state_dict(metadata=_METADATA)  # type: ignore[operator]
        for number, part in enumerate(bare_parts(engine))
    }
