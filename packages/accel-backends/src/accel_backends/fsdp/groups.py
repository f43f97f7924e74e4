"""Which modules are gathered together: the groups of one sharded model, from its plan and its tied weights."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from accel_ops.named_tensors import NamedTensor
from accel_state.errors import ConfigError

ROOT = ""


@dataclass(frozen=True, slots=True)
class ShardGroup:
    """Modules whose parameters are gathered, and whose gradients are reduced, in one collective.

    Attributes:
        modules: Their names; the root of the model is ``""``.
        is_tail: Used last in the forward pass and first in the backward pass, so kept gathered in between.
        keeps_fp32: Computes in fp32, whatever the precision of the run.
        has_experts: Experts that are spread over ranks, and so sharded over those that hold the same ones.
    """

    modules: tuple[str, ...]
    is_tail: bool = False
    keeps_fp32: bool = False
    has_experts: bool = False


def shard_groups(
    model: nn.Module,
    parameters: Iterable[NamedTensor],
    *,
    units: Iterable[str],
    tail: Sequence[str] = (),
    fp32: Collection[str] = (),
    whole: Collection[str] = (),
    experts: Collection[str] = (),
) -> tuple[ShardGroup, ...]:
    """Return the groups of a model, inner modules before those around them, the root last.

    Modules that share a parameter come into one group, since a parameter has one owner. Where the root itself
    holds such a parameter, the other modules are left to the root.

    Args:
        model: The model, on any device.
        parameters: Its parameters.
        units: Names of modules, each to be a group.
        tail: Names of the modules that run last, to be one group.
        fp32: Names of modules that compute in fp32; each becomes a group.
        whole: First names of the parameters that are not sharded.
        experts: Names of modules with experts that are spread over ranks; each becomes a group, with all in it.

    Raises:
        ConfigError: If a name is not that of a module that can be called.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    alone = [
        name
        for name in dict.fromkeys([*units, *fp32, *experts])
        if name not in tail and not any(name.startswith(f"{outer}.") for outer in experts)
    ]
    for name in (*alone, *tail):
        _check_unit(name, modules)
    first_names = {module: name for name, module in reversed(modules.items())}
    places = [
        [_joined(first_names[module], key) for module, key in found.places]
        for found in parameters
        if found.names[0] not in whole
    ]

    def renamed(names: Iterable[str]) -> set[str]:
        return {first_names[modules[name]] for name in names}

    merged = _merge_tied([*(renamed([name]) for name in alone), *([renamed(tail)] if tail else [])], places)
    in_tail, in_fp32, in_experts = renamed(tail), renamed(fp32), renamed(experts)
    index_of = _index_of(merged)
    owned = {_owner(name, index_of) for names in places for name in names}
    order = {name: index for index, name in enumerate(modules)}
    groups = [
        ShardGroup(
            tuple(sorted(names, key=order.__getitem__)),
            is_tail=bool(names & in_tail),
            keeps_fp32=names <= in_fp32,
            has_experts=bool(names & in_experts),
        )
        for index, names in enumerate(merged)
        if index in owned
    ]
    groups.sort(key=lambda group: -max(name.count(".") for name in group.modules))
    return (*groups, ShardGroup((ROOT,)))


def tensors_of_groups(
    tensors: Iterable[NamedTensor], groups: Sequence[ShardGroup]
) -> list[list[NamedTensor]]:
    """Return for each group the tensors of its modules that no inner group has."""
    index_of = _index_of(group.modules for group in groups)
    of_group: list[list[NamedTensor]] = [[] for _ in groups]
    for found in tensors:
        owner = _owner(found.names[0], index_of)
        of_group[-1 if owner is None else owner].append(found)
    return of_group


def whole_parameters(
    model: nn.Module, parameters: Iterable[NamedTensor], ignored_modules: Iterable[nn.Module] | str | None
) -> list[str]:
    """Return the first names of the parameters that stay whole on every rank: scalars, and those of ignored modules.

    Args:
        model: The model.
        parameters: Its parameters.
        ignored_modules: These modules, or a regular expression that matches their whole names.

    Raises:
        ConfigError: If a module is not part of the model, or nothing matches.
    """
    inside = {
        id(parameter) for module in _ignored(model, ignored_modules) for parameter in module.parameters()
    }
    return [found.names[0] for found in parameters if found.tensor.dim() == 0 or id(found.tensor) in inside]


def _ignored(model: nn.Module, modules: Iterable[nn.Module] | str | None) -> list[nn.Module]:
    names = {module: name for name, module in model.named_modules()}
    if isinstance(modules, str):
        pattern = re.compile(modules)
        chosen = [module for module, name in names.items() if pattern.fullmatch(name)]
        if not chosen:
            raise ConfigError(
                f"`ignored_modules` is `{modules}`, which matches the whole name of no module of the "
                f"{type(model).__name__}. Its modules begin with: {', '.join(list(names.values())[1:6])}. "
                "Name some of them."
            )
        return chosen
    chosen = list(modules or ())
    for module in chosen:
        if module not in names:
            raise ConfigError(
                f"`ignored_modules` holds a {type(module).__name__} that is not part of the {type(model).__name__}. "
                "Take modules from `model.modules()`."
            )
    return chosen


def _check_unit(name: str, modules: Mapping[str, nn.Module]) -> None:
    module = modules.get(name)
    if module is None or name == ROOT:
        raise ConfigError(
            f"The model has no submodule `{name}` to make a unit of. "
            "Name units as `model.named_modules()` does."
        )
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)) and type(module).forward is nn.Module.forward:
        raise ConfigError(
            f"`{name}` is a {type(module).__name__}, which has no forward and cannot be a unit. "
            f"Name its members: `{name}.*`."
        )


def _merge_tied(groups: list[set[str]], places: Iterable[list[str]]) -> list[set[str]]:
    """Return the groups after those that share a parameter have become one.

    Args:
        groups: Names of modules.
        places: For each parameter its name in each of the modules that hold it. A module has one name here, wherever
            it is used.
    """
    index_of = _index_of(groups)
    for names in places:
        owners = [_owner(name, index_of) for name in names]
        if len(set(owners)) == 1:
            continue
        together = sorted({owner for owner in owners if owner is not None})
        at_root = {
            name.rpartition(".")[0] for name, owner in zip(names, owners, strict=True) if owner is None
        }
        members = set().union(*(groups[index] for index in together), at_root)
        groups = [names for index, names in enumerate(groups) if index not in together]
        if ROOT not in at_root:
            groups.append(members)
        index_of = _index_of(groups)
    return groups


def _index_of(groups: Iterable[Iterable[str]]) -> dict[str, int]:
    return {name: index for index, names in enumerate(groups) for name in names}


def _owner(parameter: str, index_of: Mapping[str, int]) -> int | None:
    """Return the index of the group with the innermost module around a parameter, None if the root has it."""
    path = parameter
    while path := path.rpartition(".")[0]:
        if path in index_of:
            return index_of[path]
    return None


def _joined(module: str, key: str) -> str:
    return f"{module}.{key}" if module else key
