"""The whole state of a sharded model or optimizer, tensor by tensor: gathered for one rank, or cut from a whole one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from accel_backends.sharding.replacements import like_parameter
from accel_checkpoint.formats.deferred import DeferredTensor
from accel_checkpoint.pieces import ties_in


def gathered_state(state: Mapping[str, Any], *, is_receiver: bool) -> dict[str, Any]:
    """Return a state dict with whole tensors on the CPU; empty where ``is_receiver`` is not set.

    Every rank must call it. A rank holds one whole tensor at a time beside what it receives. Names of one tensor
    get one tensor.
    """
    first_names = ties_in(state)
    whole: dict[str, Any] = {}
    for name, value in state.items():
        if name in first_names:
            if is_receiver:
                whole[name] = whole[first_names[name]]
            continue
        found = gathered(value)
        if is_receiver:
            whole[name] = found
    return whole


def gathered(value: Any) -> Any:
    """Return a whole tensor on the CPU for a `DTensor`, a plain tensor there, other values as they are."""
    if isinstance(value, DTensor):
        value = value.full_tensor()
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def deferred_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state dict in which each `DTensor` is gathered when it is written; names of one tensor have one."""
    first_names = ties_in(state)
    deferred: dict[str, Any] = {}
    for name, value in state.items():
        deferred[name] = deferred[first_names[name]] if name in first_names else _deferred(value)
    return deferred


def deferred_optimizer_state(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state dict of an optimizer in which each `DTensor` is gathered when it is written."""
    state = {
        number: {name: _deferred(value) for name, value in values.items()}
        for number, values in content["state"].items()
    }
    return {**content, "state": state}


def _deferred(value: Any) -> Any:
    if isinstance(value, DTensor):
        return DeferredTensor(value.dtype, value.shape, partial(gathered, value))
    return value.detach() if isinstance(value, torch.Tensor) else value


def load_model_state(model: nn.Module, state: Mapping[str, Any], *, strict: bool) -> Any:
    """Load a whole state into the shards of ``model``; each rank cuts its own parts. No communication."""
    own = model.state_dict()
    parts = {
        name: like_parameter(value, own[name]) if name in own else value for name, value in state.items()
    }
    return model.load_state_dict(parts, strict=strict)


def gathered_optimizer_state(content: Mapping[str, Any], *, is_receiver: bool) -> dict[str, Any]:
    """Return the state dict of an optimizer with whole tensors on the CPU; every rank must call it.

    Without ``is_receiver`` it has the groups only.
    """
    state: dict[Any, Any] = {}
    for number, values in content["state"].items():
        whole = {name: gathered(value) for name, value in values.items()}
        if is_receiver:
            state[number] = whole
    return {**content, "state": state}


def sharded_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a whole state with each part cut like the parameter it belongs to. No communication."""
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    of_number = dict(zip(numbers, parameters, strict=True))
    parts = {
        number: {name: like_parameter(value, of_number[number]) for name, value in values.items()}
        for number, values in state["state"].items()
    }
    return {**state, "state": parts}
