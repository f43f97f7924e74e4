"""States that are loaded before the first batch, which shows what of them each rank of a pipeline needs.

Until then rank 0 has the model, which it will send; other ranks may have it on the meta device, and rank 0 too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from accel_backends.sharding.full_state import HeldTensor
from accel_backends.sharding.replacements import like_parameter
from accel_backends.sharding.values import replace_tensor
from accel_checkpoint.tensors import DeferredTensor, copy_of, fetched, map_tensors
from accel_ops.named_tensors import NamedTensor


def state_before_loading(
    state: Mapping[str, Any], *, is_sender: bool, device: torch.device
) -> dict[str, Any]:
    """Return a model's state, for a format to read into; without reading what is on the meta device.

    Args:
        state: The tensors of the model themselves.
        is_sender: Whether this rank will send the values; it is to read those tensors one at a time, other ranks not.
        device: Where tensors are received.
    """
    known: dict[int, DeferredTensor] = {}  # tied tensors stay one

    def before(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_meta:
            return value
        if id(value) not in known:
            known[id(value)] = (
                DeferredTensor(value.dtype, value.shape, lambda: value)
                if is_sender
                else HeldTensor.of(None, [0], dtype=value.dtype, shape=value.shape, device=device)
            )
        return known[id(value)]

    return {name: before(value) for name, value in state.items()}


def take_early(
    tensors: Sequence[NamedTensor], state: Mapping[str, Any], *, is_sender: bool
) -> dict[str, Any]:
    """Give the tensors on the meta device their values on the rank that will send them; return the rest of the state.

    Args:
        tensors: Those of the model, which are replaced.
        state: The values.
        is_sender: Whether this rank will send them; others leave them out.
    """
    taken: set[str] = set()
    for found in tensors:
        if not found.tensor.is_meta:
            continue
        taken.update(found.names)
        name = next((name for name in found.names if name in state), None)
        if is_sender and name is not None:
            value = fetched(state[name])
            # A copy, since the file may be removed.
            replace_tensor(found, torch.empty_like(found.tensor, device="cpu").copy_(value))
    return {name: value for name, value in state.items() if name not in taken}


class EarlyOptimizerState:
    """The state of parameters on the meta device, kept until the stage of this rank is known.

    Args:
        optimizer: The optimizer that was prepared.
        state: Its whole state.

    Attributes:
        rest: The state of all other parameters.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        parameters = dict(zip(numbers, enumerate(parameters_of(optimizer)), strict=True))
        self._kept: dict[int, dict[str, Any]] = {}
        own: dict[int, dict[str, Any]] = {}
        for number, values in state["state"].items():
            place, parameter = parameters[number]
            known = {name: fetched(value) for name, value in values.items()}
            if parameter.is_meta:
                # Copies, since the file that they are mapped from may be removed.
                self._kept[place] = map_tensors(known, copy_of)
            else:
                own[number] = known
        self.rest = {**state, "state": own}

    def give(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the parameters that took the place of those on the meta device have the state."""
        parameters = parameters_of(optimizer)
        for place, values in self._kept.items():
            parameter = parameters[place]
            optimizer.state[parameter] = {
                name: like_parameter(value, parameter) for name, value in values.items()
            }


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the parameters of all groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
