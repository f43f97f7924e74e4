"""The state of an optimizer on its way into one: whether it fits, and in whose memory it ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from accel_checkpoint.saving.snapshot import copy_of, is_plain, map_tensors

_LIKE_PARAMETER = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "sum")
"""States that have the shape of their parameter, in torch's optimizers and in those that name theirs alike."""


def misfit_of(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Any], shapes: Sequence[Sequence[torch.Size]]
) -> str | None:
    """Say why ``state`` does not belong to ``optimizer``, None if it seems to.

    torch itself compares the sizes of the groups and nothing else.

    Args:
        optimizer: The optimizer.
        state: A state of whole parameters.
        shapes: Those of the whole parameters that the optimizer steps, by group.
    """
    groups, own = state["param_groups"], shapes
    if len(groups) != len(own):
        return f"it has {len(groups)} parameter groups, the optimizer {len(own)}"
    for number, (saved, here) in enumerate(zip(groups, own, strict=True)):
        if len(saved["params"]) != len(here):
            return f"group {number} has {len(saved['params'])} parameters, the optimizer's {len(here)}"
        missing = [name for name in optimizer.defaults if name not in saved and name in _hallmarks(optimizer)]
        if missing:
            return f"group {number} has no `{missing[0]}`, so it is the state of another kind of optimizer"
    for name, saved_shape, shape in _shapes(state, shapes):
        if saved_shape != shape:
            return f"`{name}` has the shape {tuple(saved_shape)}, its parameter {tuple(shape)}"
    return None


def without_file(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> Any:
    """Return ``state`` with its tensors copied out of the file that they are mapped from.

    What an optimizer keeps must not depend on a file that is removed or cut while it trains. Tensors go into the
    memory that the optimizer has for them, if it has any; so loading needs no more than one file on top.
    """
    memory = _memory_of(optimizer, state)

    def copy(path: tuple[Any, ...], tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, DTensor):
            return tensor  # a part that was read into memory of its own
        own = memory.get(path[1:]) if path[:1] == ("state",) else None
        if own is None or own.shape != tensor.shape or own.dtype != tensor.dtype:
            return copy_of(tensor)
        return own.detach().copy_(tensor)

    return map_tensors(state, copy)


def _memory_of(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
) -> dict[tuple[Any, ...], torch.Tensor]:
    """Return the tensors on the CPU that the optimizer has, under the number and the name of the saved state."""
    return {
        (number, name): value
        for number, parameter in _numbered_parameters(optimizer, state)
        for name, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor) and is_plain(value) and value.device.type == "cpu"
    }


def _numbered_parameters(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
) -> Iterator[tuple[Any, torch.Tensor]]:
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if len(numbers) == len(parameters):  # not where several were flattened into one
        yield from zip(numbers, parameters, strict=True)


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
    state: Mapping[str, Any], shapes: Sequence[Sequence[torch.Size]]
) -> Iterator[tuple[str, torch.Size, torch.Size]]:
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    for number, shape in zip(numbers, chain.from_iterable(shapes), strict=True):
        for name, value in state["state"].get(number, {}).items():
            if name in _LIKE_PARAMETER and isinstance(value, torch.Tensor):
                yield f"state.{number}.{name}", value.shape, shape
