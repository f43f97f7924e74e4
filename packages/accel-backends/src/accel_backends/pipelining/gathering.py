"""Whole states of models and optimizers, put together from the stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from accel_backends.pipelining.stages import StagedModel
from accel_backends.state_placement import move_to_device
from accel_ops import gather_object


def whole_model_state(state: Mapping[str, Any], staged: StagedModel | None) -> dict[str, Any]:
    """Return a model's state on the CPU, with the values of all stages. All ranks together.

    Args:
        state: By name, the tensors of the model themselves, those of other stages without values.
        staged: The stages; None, or stages that no batch has passed yet: this rank has all values.
    """
    users = (
        {}
        if staged is None
        else {id(t.tensor): u for t, u in zip(staged.tensors, staged.users, strict=False)}
    )
    whole: dict[str, Any] = {}
    received: dict[int, torch.Tensor] = {}  # tied tensors stay one
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            whole[name] = value
            continue
        if id(value) not in received:
            received[id(value)] = _from_first(value.detach(), users.get(id(value), frozenset())).cpu()
        whole[name] = received[id(value)]
    return whole


def _from_first(tensor: torch.Tensor, users: frozenset[int]) -> torch.Tensor:
    """Return the tensor of the first stage that computes with it."""
    if not users or len(users) == dist.get_world_size():
        return tensor
    tensor = tensor.contiguous()
    dist.broadcast(tensor, min(users))
    return tensor


def whole_optimizer_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state on the CPU, with the states of all stages' parameters. All ranks together.

    Args:
        state: Of this rank; its groups have the parameters of all stages, numbered alike on every rank.
    """
    found: dict[int, Any] = {}
    for part in gather_object([move_to_device(state["state"], "cpu")]):
        found |= {number: value for number, value in part.items() if number not in found}
    return {**state, "state": dict(sorted(found.items()))}
