"""The state of an optimizer of flattened models, as a plain optimizer of the plain models has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from accel_backends.flat_sharding.flat_model import FlatModel
from accel_backends.flat_sharding.whole_state_dicts import whole_state_dicts
from accel_state.errors import CheckpointError

Place = tuple[FlatModel | None, Any]
"""A parameter of a plain model: the model and its name there, or None and the parameter if it is of no such model."""


def places(optimizer: torch.optim.Optimizer, models: Sequence[FlatModel]) -> list[list[Place]]:
    """Return for each group the parameters in the order in which a plain optimizer would number them.

    Those of a flat parameter come in the order of their model.
    """
    return [_places_of_group(group["params"], models) for group in optimizer.param_groups]


def gathered_optimizer_state(optimizer: torch.optim.Optimizer, models: Sequence[FlatModel]) -> dict[str, Any]:
    """Return the state dict of a plain optimizer, whole and on the CPU; every rank must call it."""
    values: dict[tuple[int, Any], Any] = {}
    for model in models:
        part = _Part.of(optimizer, model)
        if not part.parameters:
            continue
        with whole_state_dicts(model.root, rank0_only=False):
            found = FullyShardedDataParallel.optim_state_dict(model.root, part, part.state_dict(optimizer))  # type: ignore[arg-type]
        values |= {(id(model), name): one for name, one in found.get("state", {}).items()}
    state: dict[int, Any] = {}
    groups: list[dict[str, Any]] = []
    number = 0
    for group, of_group in zip(
        optimizer.state_dict()["param_groups"], places(optimizer, models), strict=True
    ):
        groups.append({**group, "params": list(range(number, number + len(of_group)))})
        for owner, name in of_group:
            own = optimizer.state.get(name) if owner is None else values.get((id(owner), name))
            if own:
                state[number] = {key: _on_cpu(value) for key, value in own.items()}
            number += 1
    return {"state": state, "param_groups": groups}


def parts_of_optimizer_state(
    optimizer: torch.optim.Optimizer, models: Sequence[FlatModel], state: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the state dict to load into ``optimizer`` for the whole one of a plain optimizer.

    Every rank must call it, with all of the state; each takes its parts.

    Raises:
        CheckpointError: If the groups have other sizes, or a part of a flat parameter has no state.
    """
    own = places(optimizer, models)
    saved = state["param_groups"]
    sizes = [len(group["params"]) for group in saved], [len(group) for group in own]
    if sizes[0] != sizes[1]:
        raise CheckpointError(
            f"The state is of an optimizer whose groups have {_counted(sizes[0])} parameters, but those here have "
            f"{_counted(sizes[1])}. "
            "Make the optimizer as in the saved run."
        )
    numbers = [number for group in saved for number in group["params"]]
    by_place = dict(zip(((id(model), name) for group in own for model, name in group), numbers, strict=True))
    loaded: dict[torch.Tensor, Any] = {
        name: state["state"][by_place[id(None), name]]
        for group in own
        for model, name in group
        if model is None and by_place[id(None), name] in state["state"]
    }
    for model in models:
        named = {
            name: dict(state["state"][by_place[id(model), name]])
            for group in own
            for one, name in group
            if one is model and by_place[id(model), name] in state["state"]
        }
        loaded |= _parts_of(model, _Part.of(optimizer, model), named)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    number_of = {id(parameter): number for number, parameter in enumerate(parameters)}
    return {
        "state": {number_of[id(parameter)]: values for parameter, values in loaded.items()},
        "param_groups": [
            {**group, "params": [number_of[id(parameter)] for parameter in here["params"]]}
            for group, here in zip(saved, optimizer.param_groups, strict=True)
        ],
    }


def put_whole_state(
    optimizer: torch.optim.Optimizer, models: Sequence[FlatModel], state: Mapping[tuple[int, str], Any]
) -> None:
    """Give an optimizer this rank's parts of state of whole parameters, which has names as in `take_whole_state`."""
    for model in models:
        named = {name: values for (owner, name), values in state.items() if owner == id(model)}
        optimizer.state.update(_parts_of(model, _Part.of(optimizer, model), named))


@dataclass(frozen=True, slots=True)
class _Part:
    """The groups of an optimizer with the parameters of one model only, which is what torch converts."""

    param_groups: list[dict[str, Any]]

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, model: FlatModel) -> _Part:
        return cls(
            [
                {**group, "params": [one for one in group["params"] if id(one) in model.names]}
                for group in optimizer.param_groups
            ]
        )

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        numbered = dict(enumerate(self.parameters))
        return {
            "state": {
                number: optimizer.state[one] for number, one in numbered.items() if one in optimizer.state
            }
        }


def _parts_of(model: FlatModel, part: _Part, named: Mapping[str, Any]) -> dict[torch.Tensor, Any]:
    """Return what this rank keeps of whole state by name."""
    for parameter in part.parameters:
        names = model.names[id(parameter)]
        missing = [name for name in names if name not in named]
        if missing and len(missing) < len(names):
            raise CheckpointError(
                f"The state has nothing for `{missing[0]}`, which was flattened into one with `{names[0]}`. Set "
                "`use_orig_params=True` in `FullyShardedDataParallelPlugin`."
            )
    with whole_state_dicts(model.root, rank0_only=False):
        found = FullyShardedDataParallel.optim_state_dict_to_load(model.root, part, {"state": dict(named)})  # type: ignore[arg-type]
    parameters = part.parameters
    return {parameters[number]: _copied(values) for number, values in found["state"].items()}


def _places_of_group(parameters: Sequence[nn.Parameter], models: Sequence[FlatModel]) -> list[Place]:
    owners = {number: model for model in models for number in model.names}
    found: list[Place] = []
    is_flat = False
    for parameter in parameters:
        model = owners.get(id(parameter))
        names: Sequence[Any] = (parameter,) if model is None else model.names[id(parameter)]
        is_flat = is_flat or (model is not None and not model.root._use_orig_params)
        found += [(model, name) for name in names]
    if is_flat:
        order = {(id(model), name): number for number, (model, name) in enumerate(_in_order(models))}
        found.sort(key=lambda place: order.get((id(place[0]), place[1]), len(order)))
    return found


def _in_order(models: Sequence[FlatModel]) -> list[Place]:
    return [(model, name) for model in models for name in model.shapes]


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values in memory of their own: a part must not keep the whole."""
    return {name: one.clone() if isinstance(one, torch.Tensor) else one for name, one in values.items()}


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def _counted(sizes: Sequence[int]) -> str:
    return " and ".join(str(size) for size in sizes)
