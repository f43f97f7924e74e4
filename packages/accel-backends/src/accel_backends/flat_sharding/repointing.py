"""Optimizers that were made before their model was flattened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from accel_backends.flat_sharding.flat_model import FlatModel
from accel_backends.sharding.replacements import ReplacedParameters
from accel_state.errors import ConfigError


def repoint(
    optimizer: torch.optim.Optimizer, replaced: ReplacedParameters, models: Iterable[FlatModel]
) -> None:
    """Let an optimizer step what took the place of its parameters, in the same groups.

    State that it has is not moved.

    Raises:
        ConfigError: If it would step a part of a flat parameter, or different parts in different groups.
    """
    names = {number: parts for model in models for number, parts in model.names.items()}
    for index, group in enumerate(optimizer.param_groups):
        successors = [replaced.newest(parameter) for parameter in group["params"]]
        _check_completeness(index, group["params"], successors, names)
        # In place, since some optimizers keep the list beside their groups.
        group["params"][:] = list({id(parameter): parameter for parameter in successors}.values())


def _check_completeness(
    index: int,
    parameters: list[torch.Tensor],
    successors: list[torch.Tensor],
    names: Mapping[int, tuple[str, ...]],
) -> None:
    counts: dict[int, int] = {}
    for old, new in zip(parameters, successors, strict=True):
        if old is not new:
            counts[id(new)] = counts.get(id(new), 0) + 1
    for number, count in counts.items():
        parts = names[number]
        if count < len(parts):
            raise ConfigError(
                f"Group {index} of the optimizer steps {count} of the {len(parts)} parameters that "
                f"`use_orig_params=False` flattened into one (`{parts[0]}` to `{parts[-1]}`). Set "
                "`use_orig_params=True` in `FullyShardedDataParallelPlugin`, or make the optimizer from the "
                "prepared model, without groups."
            )


def take_whole_state(
    optimizer: torch.optim.Optimizer, models: Iterable[FlatModel]
) -> dict[tuple[int, str], Any]:
    """Take the state of whole parameters out of an optimizer, by the `id` of the model and the parameter's name.

    Empty if the optimizer has none, or state of what it steps after flattening.
    """
    of_parameter = {
        parameter: (id(model), model.originals[parameter], model.shapes[model.originals[parameter]])
        for model in models
        for parameter in optimizer.state
        if parameter in model.originals
    }
    is_whole = any(
        isinstance(value, torch.Tensor) and value.shape == shape != parameter.shape
        for parameter, (_, _, shape) in of_parameter.items()
        for value in optimizer.state[parameter].values()
    )
    if not is_whole:
        return {}
    return {
        (model, name): optimizer.state.pop(parameter) for parameter, (model, name, _) in of_parameter.items()
    }
