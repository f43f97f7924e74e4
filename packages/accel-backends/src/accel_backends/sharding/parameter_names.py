"""The names of an optimizer's parameters, by which a state finds its parameter in any order and on any rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from accel_ops.named_tensors import named_tensors
from accel_state.errors import CheckpointError


def parameters_of(optimizer: torch.optim.Optimizer, models: Sequence[nn.Module]) -> dict[str, torch.Tensor]:
    """Return the parameters of an optimizer by name, in the order of their numbers in its state dict.

    Where they belong to several models, each name begins with the number of its model.

    Raises:
        CheckpointError: If a parameter is part of no model.
    """
    homes: dict[int, tuple[int, str]] = {}
    for index, model in enumerate(models):
        for found in named_tensors(model, include_buffers=False):
            homes.setdefault(id(found.tensor), (index, found.names[0]))
    stepped = [
        (number, parameter)
        for number, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
    ]
    for number, parameter in stepped:
        if id(parameter) not in homes:
            raise CheckpointError(
                f"A parameter of shape {tuple(parameter.shape)} in group {number} of the {type(optimizer).__name__} is "
                "part of no prepared model, so its state has no name in a sharded checkpoint. Prepare its model too, "
                "or set `state_dict_type` to `FULL_STATE_DICT`."
            )
    has_one_model = len({homes[id(parameter)][0] for _, parameter in stepped}) <= 1
    named: dict[str, torch.Tensor] = {}
    for _, parameter in stepped:
        index, name = homes[id(parameter)]
        named[name if has_one_model else f"{index}.{name}"] = parameter
    return named
