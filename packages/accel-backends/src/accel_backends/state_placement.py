"""Moves optimizer state to where its parameters are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def move_to_device(state: Any, device: torch.device | str) -> Any:
    """Return nested lists, tuples and mappings with all tensors on ``device`` and the rest unchanged."""
    if isinstance(state, torch.Tensor):
        return state.to(device)
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return type(state)(*(move_to_device(value, device) for value in state))
    if isinstance(state, (list, tuple)):
        return type(state)(move_to_device(value, device) for value in state)
    if isinstance(state, Mapping):
        moved = {key: move_to_device(value, device) for key, value in state.items()}
        return moved if type(state) is dict else type(state)(moved)  # type: ignore[call-arg]
    return state


def place_optimizer_state(optimizer: torch.optim.Optimizer) -> None:
    """Move the state of each parameter to that parameter's device, in place and without changing any type.

    Step counters stay where they are: torch keeps them on the CPU on purpose, and moves those it wants
    elsewhere.
    """
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if name != "step":
                state[name] = move_to_device(value, parameter.device)
