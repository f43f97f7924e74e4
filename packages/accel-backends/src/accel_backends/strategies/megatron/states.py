"""The states of a model of megatron-core and its optimizer, as megatron-core describes them."""

from __future__ import annotations

from typing import Any

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
        parts = _describe(engine)
        named = parts["part_0"] if len(parts) == 1 else parts
        description: dict[str, Any] = engine.optimizer.sharded_state_dict(
            named, is_loading=is_loading, metadata=_METADATA
        )
        return description

    return ShardedState(describe, engine.optimizer.load_state_dict)


def _describe(engine: MegatronEngine) -> dict[str, Any]:
    return {
        f"part_{number}": part.sharded_state_dict(metadata=_METADATA)  # type: ignore[operator]
        for number, part in enumerate(bare_parts(engine))
    }
