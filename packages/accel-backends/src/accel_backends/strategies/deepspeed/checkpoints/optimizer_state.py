"""The state of the optimizer of an engine, as a plain optimizer of the plain model has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from accel_backends.strategies.deepspeed.checkpoints.flat_groups import (
    FlatGroup,
    flat_groups,
    stepping_optimizer,
)
from accel_backends.strategies.deepspeed.checkpoints.states import EngineState
from accel_backends.strategies.deepspeed.checkpoints.step_counts import restore_step_counts
from accel_checkpoint.tensors import DeferredTensor
from accel_state.errors import CheckpointError


def stepped_parameters(engine: Any) -> list[dict[str | int, Any]]:
    """Return the parameters that the optimizer steps, deferred, by group and name, in the order of its state."""
    groups: list[dict[str | int, Any]] = [{} for _ in _settings(engine)]
    for group in flat_groups(engine):
        for name, shape in group.shapes.items():
            get = partial(group.gathered, name, group.flat)
            groups[group.number][name] = DeferredTensor(group.flat.dtype, shape, get)
    return groups


def local_optimizer_state(engine: Any) -> EngineState:
    """Return the state with deferred tensors; each is gathered when it is fetched, by all ranks together.

    Raises:
        CheckpointError: If the optimizer keeps something that is neither a number nor a value for each of a parameter.
    """
    optimizer = stepping_optimizer(engine)
    assert optimizer is not None
    groups: list[dict[str, Any]] = [{**settings, "params": []} for settings in _settings(engine)]
    state: dict[int, dict[str, Any]] = {}
    numbered = ((group, name) for group in flat_groups(engine) for name in group.shapes)
    for number, (group, name) in enumerate(numbered):
        groups[group.number]["params"].append(number)
        values = dict(_values(group, name, optimizer))
        if values:
            state[number] = values
    return EngineState({"state": state, "param_groups": groups}, engine=engine)


def load_optimizer_state(engine: Any, content: Mapping[str, Any]) -> None:
    """Load a whole state, of which this rank takes its parts. No communication.

    Raises:
        CheckpointError: If parameters that DeepSpeed steps as one have been stepped differently often, or have other
            states.
    """
    optimizer = stepping_optimizer(engine)
    assert optimizer is not None
    numbers = [number for group in content["param_groups"] for number in group["params"]]
    in_order = iter(numbers)
    for group in flat_groups(engine):
        states = {name: content["state"].get(next(in_order)) for name in group.shapes}
        group.forget_states()
        with group.in_memory(is_changed=True):
            optimizer.state[group.flat] = _flattened(
                group, {name: one for name, one in states.items() if one}
            )
    for settings, saved in zip(optimizer.param_groups, content["param_groups"], strict=True):
        settings.update({name: value for name, value in saved.items() if name != "params"})
    restore_step_counts(optimizer)


def _values(group: FlatGroup, name: str, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    for kind, value in optimizer.state.get(group.flat, {}).items():
        if _is_like(kind, value, group.flat.shape):
            yield kind, DeferredTensor(value.dtype, group.shapes[name], partial(group.gathered, name, value))
        elif isinstance(value, torch.Tensor) and value.numel() > 1:
            raise CheckpointError(
                f"`{kind}` of the {type(optimizer).__name__} has the shape {tuple(value.shape)}, while DeepSpeed lets "
                f"it step a flat tensor of {group.flat.numel()} values: it belongs to no single parameter, so the "
                "state could not be loaded. Use another optimizer, such as AdamW, or train with DDP."
            )
        else:
            yield kind, value.detach().clone() if isinstance(value, torch.Tensor) else value


def _flattened(group: FlatGroup, found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state of the flat tensor whose parameters have the states ``found``."""
    if not found:
        return {}
    first = next(iter(found))
    flat: dict[str, Any] = {}
    for kind, value in found[first].items():
        if _is_like(kind, value, group.shapes[first]):
            flat[kind] = torch.zeros_like(group.flat, dtype=value.dtype)
            for name, state in found.items():
                group.put(name, flat[kind], state[kind])
            continue
        others = [name for name, state in found.items() if state[kind] != value]
        if others or len(found) < len(group.shapes):
            other = others[0] if others else next(name for name in group.shapes if name not in found)
            there = found[other][kind] if others else "missing"
            raise CheckpointError(
                f"`{kind}` is {value} for `{first}` and {there} for `{other}`, but DeepSpeed steps both as one tensor. "
                "Put them into groups of their own, or train without DeepSpeed."
            )
        flat[kind] = value.detach().clone() if isinstance(value, torch.Tensor) else value
    return flat


def _is_like(kind: str, value: Any, shape: torch.Size) -> bool:
    """Whether a state has a value for each of the parameter, which has this shape."""
    return isinstance(value, (torch.Tensor, DeferredTensor)) and value.shape == shape and kind != "step"


def _settings(engine: Any) -> Sequence[dict[str, Any]]:
    optimizer = stepping_optimizer(engine)
    groups = [] if optimizer is None else optimizer.param_groups
    return [{name: value for name, value in group.items() if name != "params"} for group in groups]
