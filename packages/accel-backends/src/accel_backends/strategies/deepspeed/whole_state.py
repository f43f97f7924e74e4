"""The whole state of a model whose parameters ZeRO 3 has cut, gathered one parameter at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from accel_backends.strategies.deepspeed.gathered import GatheredParameters


def whole_state(model: nn.Module, *, is_receiver: bool) -> dict[str, Any]:
    """Return the state on the CPU of the receiver, an empty dict elsewhere. All ranks must call it."""
    whole: dict[int, Any] = {}  # a tied weight is gathered once, on every rank
    state: dict[str, Any] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) not in whole:
            whole[id(value)] = _whole(value, is_receiver=is_receiver)
        if is_receiver:
            state[name] = whole[id(value)]
    return state


def _whole(value: Any, *, is_receiver: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    with GatheredParameters(value):
        return value.detach().to("cpu", copy=True) if is_receiver else None
