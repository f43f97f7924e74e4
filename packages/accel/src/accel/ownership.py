"""What may be prepared together: optimizers step parameters of prepared models, on one device or by plan."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn

from accel_state.errors import ConfigError

NAMED = 3
"""Parameters that a message names before it only counts."""


def strangers(optimizer: torch.optim.Optimizer, models: Iterable[nn.Module]) -> Iterator[str]:
    """Yield where in `optimizer` a parameter stands that no model has, and its shape."""
    known = {id(parameter) for model in models for parameter in model.parameters()}
    for group_index, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            if id(parameter) not in known:
                yield f"parameter {index} of group {group_index}, of shape {tuple(parameter.shape)}"


def check_parameters(
    optimizer: torch.optim.Optimizer, models: Sequence[nn.Module], *, num_processes: int
) -> None:
    """Object to an optimizer that steps parameters of no prepared model.

    With one process that may be meant, and is a warning. With several, nobody would average the gradients of
    such parameters, and every rank would train its own.

    Args:
        optimizer: The optimizer, not prepared yet.
        models: Models that are prepared for training, or will be in the same call.
        num_processes: Processes in the run.

    Raises:
        ConfigError: With several processes, if there is such a parameter.
    """
    found = list(strangers(optimizer, models))
    if not found:
        return
    total = sum(len(group["params"]) for group in optimizer.param_groups)
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    sentence = (
        f"{len(found)} of the {total} parameters of the {type(optimizer).__name__} to prepare belong to no "
        f"prepared model: {'; '.join(found[:NAMED])}{more}. "
    )
    remedy = (
        "Prepare the model in the same call or before, and make the optimizer from the model that is "
        "prepared; step an optimizer of other parameters without preparing it."
    )
    if num_processes > 1:
        raise ConfigError(f"{sentence}Their gradients would not be averaged over the processes. {remedy}")
    warnings.warn(f"{sentence}With several processes that is an error. {remedy}", stacklevel=4)


def has_device_map(model: nn.Module) -> bool:
    """Whether a device map has put parts of `model` on more than one device (CPU and disk count as such)."""
    maps = (getattr(module, "hf_device_map", None) or {} for module in model.modules())
    return any(len({str(place) for place in device_map.values()}) > 1 for device_map in maps)


def check_placement(model: nn.Module, *, num_processes: int, is_bypassed: bool) -> None:
    """Refuse to train a model on several processes whose parts a device map has spread out.

    Every process would use the same devices. Where they do not (each has devices of its own),
    `ACCELERATE_BYPASS_DEVICE_MAP=true` lets the model pass.

    Raises:
        ConfigError: If that is so.
    """
    if num_processes > 1 and not is_bypassed and has_device_map(model):
        raise ConfigError(
            f"The {type(model).__name__} to prepare was spread over several devices with a device map, so it "
            f"cannot be trained by {num_processes} processes at once: each needs the model on its own device. "
            "Load it without `device_map`, start one process, or, if every process has its own devices, set "
            "`ACCELERATE_BYPASS_DEVICE_MAP=true`."
        )
