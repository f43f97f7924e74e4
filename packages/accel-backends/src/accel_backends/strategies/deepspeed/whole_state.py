"""The whole state of a model whose parameters ZeRO 3 has cut, gathered one parameter at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from accel_backends.strategies.deepspeed.gathered import GatheredParameters


def whole_state(model: nn.Module, *, is_receiver: bool) -> dict[str, Any]:
    """Return the state on the CPU of the receiver, an empty dict elsewhere. All ranks must call it."""
    whole: dict[int, torch.Tensor] = {}
    state: dict[str, Any] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) not in whole and isinstance(value, torch.Tensor):
            with GatheredParameters(value):
                if is_receiver:
                    whole[id(value)] = value.detach().to("cpu", copy=True)
        if is_receiver:
            state[name] = whole.get(id(value), value)
    return state
