"""Whether the state of an optimizer fits the one that it is loaded into."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

_LIKE_PARAMETER = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "sum")
"""States that have the shape of their parameter, in torch's optimizers and in those that name theirs alike."""


def misfit_of(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> str | None:
    """Say why ``state`` does not belong to ``optimizer``, None if it seems to.

    torch itself compares the sizes of the groups and nothing else.
    """
    groups, own = state["param_groups"], optimizer.param_groups
    if len(groups) != len(own):
        return f"it has {len(groups)} parameter groups, the optimizer {len(own)}"
    for number, (saved, here) in enumerate(zip(groups, own, strict=True)):
        if len(saved["params"]) != len(here["params"]):
            return (
                f"group {number} has {len(saved['params'])} parameters, the optimizer's {len(here['params'])}"
            )
        missing = [name for name in optimizer.defaults if name not in saved and name in _hallmarks(optimizer)]
        if missing:
            return f"group {number} has no `{missing[0]}`, so it is the state of another kind of optimizer"
    for name, saved_shape, shape in _shapes(optimizer, state):
        if saved_shape != shape:
            return f"`{name}` has the shape {tuple(saved_shape)}, its parameter {tuple(shape)}"
    return None


def _hallmarks(optimizer: torch.optim.Optimizer) -> set[str]:
    """Return the settings that only some optimizers have; those that torch adds to all of them come and go."""
    return set(optimizer.defaults) & {
        "betas",
        "momentum",
        "dampening",
        "rho",
        "alpha",
        "eps",
        "lr_decay",
        "nesterov",
    }


def _shapes(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
) -> Iterator[tuple[str, torch.Size, torch.Size]]:
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        for name, value in state["state"].get(number, {}).items():
            if name in _LIKE_PARAMETER and isinstance(value, torch.Tensor):
                yield f"state.{number}.{name}", value.shape, parameter.shape
