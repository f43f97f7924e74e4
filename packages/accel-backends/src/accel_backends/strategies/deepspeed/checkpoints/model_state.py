"""The weights of what an engine trains: whole, a few tensors at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import _IncompatibleKeys

from accel_backends.strategies.deepspeed.checkpoints.counters import restore_counters
from accel_backends.strategies.deepspeed.checkpoints.flat_groups import (
    FlatGroup,
    flat_groups,
    stepping_optimizer,
)
from accel_backends.strategies.deepspeed.checkpoints.states import EngineState, SavedWeights
from accel_backends.strategies.deepspeed.gathered import GatheredParameters
from accel_backends.strategies.deepspeed.layer_cuts import LayerCut, cuts_of
from accel_checkpoint.tensors import DeferredTensor, fetched

_GATHERED_BYTES = 2**28


def local_model_state(engine: Any, *, in_training_precision: bool = False) -> dict[str, Any]:
    """Return the state with deferred parameters; each is gathered when it is fetched, by all ranks together.

    Names of one parameter have one tensor. An engine without an optimizer saves nothing by itself, so its state is a
    plain dict.

    Args:
        engine: The engine.
        in_training_precision: Return bf16 or fp16 parameters as the model has them; otherwise their fp32 values, from
            which the training goes on.
    """
    masters = {} if in_training_precision else _groups_by_name(engine)
    names = {id(parameter): name for name, parameter in engine.module.named_parameters()}
    cuts = cuts_of(engine.module)
    together = _GatheredTogether()
    once: dict[int, DeferredTensor] = {}
    state: dict[str, Any] = {}
    for name, value in engine.module.state_dict(keep_vars=True).items():
        if not isinstance(value, nn.Parameter):
            state[name] = value.detach() if isinstance(value, torch.Tensor) else value
            continue
        if id(value) not in once:
            first = names[id(value)]
            group, cut = masters.get(first), cuts.get(first)
            shape = _shape(value) if cut is None else cut.shape
            get: Callable[[], torch.Tensor]
            if group is not None and group.flat.dtype != value.dtype:
                get = partial(group.gathered, first, group.flat)
            else:
                get = together.getter(value) if cut is None else partial(cut.gathered, value)
            dtype = value.dtype if group is None else group.flat.dtype
            once[id(value)] = DeferredTensor(dtype, shape, get)
        state[name] = once[id(value)]
    return state if stepping_optimizer(engine) is None else EngineState(state, engine=engine)


@torch.no_grad()
def load_model_state(engine: Any, state: Mapping[str, Any], *, strict: bool = True) -> Any:
    """Load a whole state: the model's parameters, and this rank's part of the fp32 values that the optimizer steps.

    Every rank must call it, with the same state. A rank holds one whole tensor at a time.

    Returns:
        Missing and unexpected keys as `torch.nn.Module.load_state_dict` does.

    Raises:
        RuntimeError: With ``strict``, if names differ, as torch does.
    """
    own = engine.module.state_dict(keep_vars=True)
    named = dict(engine.module.named_parameters())
    second_names = {
        name for name, value in own.items() if isinstance(value, nn.Parameter) and name not in named
    }
    missing = [name for name in own if name not in state and name not in second_names]
    outcome = _IncompatibleKeys(missing, [name for name in state if name not in own])
    if strict and (outcome.missing_keys or outcome.unexpected_keys):
        raise RuntimeError(
            f"The state does not fit the {type(engine.module).__name__}: "
            f"missing {outcome.missing_keys}, unexpected {outcome.unexpected_keys}."
        )
    groups, cuts = _groups_by_name(engine), cuts_of(engine.module)
    optimizer = engine.optimizer
    if hasattr(optimizer, "checkpoint_event_prologue"):  # stage 3 then keeps no parameter unsharded
        optimizer.checkpoint_event_prologue()
    for name, value in own.items():
        if name not in state or name in second_names:
            continue
        if isinstance(value, nn.Parameter):
            _set_parameter(value, state[name], cuts.get(name))
            if name in groups:
                with groups[name].in_memory(is_changed=True):
                    groups[name].put(name, groups[name].flat, state[name])
        elif isinstance(value, torch.Tensor):
            value.copy_(fetched(state[name]))
    if hasattr(optimizer, "checkpoint_event_epilogue"):
        optimizer.checkpoint_event_epilogue()
    if isinstance(state, SavedWeights):
        restore_counters(engine, state.counters)
    return outcome


def _groups_by_name(engine: Any) -> dict[str, FlatGroup]:
    return {name: group for group in flat_groups(engine) for name in group.shapes}


def _shape(parameter: nn.Parameter) -> torch.Size:
    """Return the shape of a parameter, which stage 3 empties while it is not used."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


class _GatheredTogether:
    """Gathers up to `_GATHERED_BYTES` of parameters, or one larger one, when the first of them is fetched.

    One collective for many small parameters. All ranks must fetch the same ones in the same order.
    """

    def __init__(self) -> None:
        self._batch: list[nn.Parameter] = []
        self._num_bytes = 0
        self._values: dict[int, torch.Tensor] = {}

    def getter(self, parameter: nn.Parameter) -> Callable[[], torch.Tensor]:
        """Return a function that returns the full parameter, as the model has it."""
        num_bytes = _shape(parameter).numel() * parameter.itemsize
        if self._num_bytes + num_bytes > _GATHERED_BYTES:
            self._batch, self._num_bytes = [], 0
        self._batch.append(parameter)
        self._num_bytes += num_bytes
        return partial(self._get, parameter, self._batch)

    def _get(self, parameter: nn.Parameter, batch: list[nn.Parameter]) -> torch.Tensor:
        if id(parameter) not in self._values:
            self._values = {}
            with GatheredParameters(batch):
                for one in batch:
                    self._values[id(one)] = one.detach().clone() if hasattr(one, "ds_id") else one.detach()
        return self._values.pop(id(parameter))


def _set_parameter(parameter: nn.Parameter, value: Any, cut: LayerCut | None) -> None:
    """Set a parameter to a whole value, or this rank's part of it; where it is sharded, to that of rank 0."""
    if cut is not None:
        parameter.data.copy_(cut.own(fetched(value)))
        return
    with GatheredParameters([parameter], modifier_rank=0):
        if not hasattr(parameter, "ds_id") or dist.get_rank() == 0:
            parameter.data.copy_(fetched(value))
