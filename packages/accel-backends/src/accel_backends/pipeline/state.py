"""State of models and optimizers whose tensors are on the ranks of different stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch

from accel_backends.fsdp.state import HeldTensor
from accel_backends.pipeline.stages import StagedModel
from accel_ops import gather_object

Name = TypeVar("Name", str, str | int)


def held_model_state(
    state: Mapping[Name, Any], staged: StagedModel, ranks: Sequence[Sequence[int]]
) -> dict[Name, Any]:
    """Return a model's state in which each tensor names the ranks that have it. No communication.

    Args:
        state: By name, the tensors of the model themselves, those of other stages without values.
        staged: The stages.
        ranks: The ranks at each place of the pipelines.
    """
    places = {
        id(found.tensor): (holders, staged.is_held(found))
        for found, holders in zip(staged.tensors, staged.holders, strict=True)
    }
    known: dict[int, HeldTensor] = {}  # tied tensors stay one
    held: dict[Name, Any] = {}
    for name, value in state.items():
        holders, is_here = places.get(id(value), (frozenset(), True))
        if not holders:
            held[name] = value.detach() if isinstance(value, torch.Tensor) else value
            continue
        if id(value) not in known:
            known[id(value)] = HeldTensor.of(
                value.detach() if is_here else None,
                ranks[min(holders)],
                dtype=value.dtype,
                shape=value.shape,
                device=value.device,
            )
        held[name] = known[id(value)]
    return held


def held_optimizer_state(
    state: Mapping[str, Any],
    places: Mapping[int, int],
    ranks: Sequence[Sequence[int]],
    *,
    rank: int,
    device: torch.device,
) -> dict[str, Any]:
    """Return an optimizer's state in which each tensor names the ranks that have it. All ranks together.

    Args:
        state: Of this rank; its groups have the parameters of all stages, numbered alike on every rank.
        places: By these numbers, the first place in the pipeline that has a parameter, where not every rank has.
        ranks: The ranks at each place of the pipelines.
        rank: This one.
        device: Where tensors are received.
    """
    own: dict[int, dict[str, Any]] = {
        number: {name: _described(value) for name, value in values.items()}
        for number, values in state["state"].items()
        if number in places and ranks[places[number]][0] == rank
    }
    described: dict[int, dict[str, Any]] = {}
    for part in gather_object([own]):
        described |= part
    held = {number: dict(values) for number, values in state["state"].items() if number not in places}
    for number, values in described.items():
        holders = ranks[places[number]]
        mine = state["state"].get(number, {})
        held[number] = {
            name: HeldTensor.of(mine.get(name), holders, dtype=value.dtype, shape=value.shape, device=device)
            if isinstance(value, torch.Tensor) and value.is_meta
            else value
            for name, value in values.items()
        }
    return {**state, "state": dict(sorted(held.items()))}


def _described(value: Any) -> Any:
    """Return what other ranks have to know of a value: of a tensor its type and shape, of a number all of it."""
    if isinstance(value, torch.Tensor):
        return torch.empty(value.shape, dtype=value.dtype, device="meta") if value.dim() else value.cpu()
    return value
