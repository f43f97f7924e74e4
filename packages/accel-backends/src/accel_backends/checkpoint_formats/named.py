"""Formats of states by name, which any strategy on any number of ranks reads; whether they fit, and their loading."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Protocol

import torch
from torch import nn

from accel_backends.checkpoint_formats.protocol import (
    CheckpointFormat,
    PreparedModel,
    PreparedOptimizer,
    SavedModel,
)
from accel_checkpoint.files import SavedFiles
from accel_checkpoint.pieces import ties_in
from accel_checkpoint.tensors import DeferredTensor
from accel_ops.named_tensors import tied_names
from accel_state.errors import CheckpointError, ConfigError
from accel_state.user_warnings import warn_user

_LIKE_PARAMETER = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "sum")
"""States that have the shape of their parameter, in torch's optimizers and in those that name theirs alike."""
_DISTINCTIVE = {"betas", "momentum", "dampening", "rho", "alpha", "eps", "lr_decay", "nesterov"}
"""Options that only some optimizers have. Those that torch adds to all optimizers differ between its releases."""


class SavedState(Protocol):
    """A state in a checkpoint; names and shapes are known before it is read."""

    shapes: Mapping[str, tuple[int, ...] | None]
    """The unsharded shape of each tensor, None for other values."""

    def open(self, own: Mapping[str, Any]) -> None:
        """Request the files that ``read(own)`` reads, unless that has been done already; see `SavedFiles`."""
        return None

    def read(self, own: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what a strategy loads in place of ``own``: full tensors, or those of ``own``, filled.

        Values in place of deferred tensors are deferred, too.
        """
        ...


class NamedFormat(CheckpointFormat):
    """A format of full tensors or `DTensor`s by name, as `Strategy.model_tensors` returns them."""

    @abstractmethod
    def open_state(self, files: SavedFiles, *, index: int) -> SavedState:
        """Return the state of a model, of which only names and shapes have been read.

        Raises:
            CheckpointError: If a file is missing or damaged.
        """

    @abstractmethod
    def read_optimizer(
        self, files: SavedFiles, optimizer: PreparedOptimizer, *, index: int
    ) -> Mapping[str, Any]:
        """Return the state dict of an optimizer, of full tensors or of such that are sharded like its parameters.

        It may be mapped from its files.

        Raises:
            CheckpointError: If a file is missing or damaged, or the state is not that of the optimizer's parameters.
        """

    def model_state(self, model: PreparedModel) -> Mapping[str, Any]:
        """Return the tensors of this rank."""
        return model.strategy.model_tensors(model.model)

    def open_model(self, files: SavedFiles, model: PreparedModel, *, index: int) -> NamedModel:
        """Return the state of a model."""
        return NamedModel(self.open_state(files, index=index), model)

    def open_optimizer(
        self, files: SavedFiles, optimizer: PreparedOptimizer, *, index: int
    ) -> Callable[[], None]:
        """Read and check the state of an optimizer, and return a function that loads it."""
        state = self.read_optimizer(files, optimizer, index=index)
        state = check_optimizer_state(optimizer, state)
        return partial(optimizer.strategy.load_optimizer_state, optimizer.optimizer, state)


class NamedModel(SavedModel):
    """The state of a model by name.

    Args:
        saved: The state.
        into: The model that it is loaded into.
    """

    def __init__(self, saved: SavedState, into: PreparedModel) -> None:
        if into.key_map:
            saved = _RenamedState(saved, into.key_map)
            self.names_in_file = saved.names_in_file
        self._saved = saved
        self._into = into
        self._renames = _renames_on_load(into.model)
        self._own = {} if self._renames else into.strategy.model_tensors(into.model, to_fill=True)
        saved.open(self._own)

    def misfits(self) -> list[str]:
        """Return names and shapes that differ."""
        return [] if self._renames else _misfits(self._own, self._saved.shapes)

    def load(self) -> list[str]:
        """Copy the state into the model, and return names that only its own `load_state_dict` could compare."""
        state, model = self._saved.read(self._own), self._into.model
        outcome = self._into.strategy.load_model_state(model, state, strict=False)
        if not self._renames or outcome is None:
            return []
        tied = {name for names in tied_names(model) if any(one in state for one in names) for name in names}
        missing = [name for name in outcome.missing_keys if name not in tied]
        return _key_misfits(missing, list(outcome.unexpected_keys))


class _RenamedState(SavedState):
    """A saved state under the names of a model with other prefixes.

    Args:
        saved: The state.
        prefixes: Prefixes in the model, by the prefixes in the checkpoint. The longest match counts; the empty prefix
            matches every name.
    """

    def __init__(self, saved: SavedState, prefixes: Mapping[str, str]) -> None:
        longest_first = sorted(prefixes, key=len, reverse=True)

        def renamed(name: str) -> str:
            prefix = next((one for one in longest_first if name.startswith(one)), None)
            return name if prefix is None else prefixes[prefix] + name.removeprefix(prefix)

        self._saved = saved
        self._renamed = {name: renamed(name) for name in saved.shapes}
        self.names_in_file = {new: name for name, new in self._renamed.items()}
        self.shapes = {self._renamed[name]: shape for name, shape in saved.shapes.items()}
        if len(self.names_in_file) < len(self._renamed):
            doubled = next(new for new in self._renamed.values() if [*self._renamed.values()].count(new) > 1)
            raise ConfigError(
                f"`key_map` gives two weights of the checkpoint the same name `{doubled}`. Use longer prefixes."
            )

    def open(self, own: Mapping[str, Any]) -> None:
        self._saved.open(self._by_saved_name(own))

    def read(self, own: Mapping[str, Any]) -> dict[str, Any]:
        saved = self._saved.read(self._by_saved_name(own))
        return {self._renamed[name]: value for name, value in saved.items()}

    def _by_saved_name(self, own: Mapping[str, Any]) -> dict[str, Any]:
        return {name: own[new] for name, new in self._renamed.items() if new in own}


def named_parameters(optimizer: PreparedOptimizer) -> dict[str, torch.Tensor]:
    """Return the parameters of an optimizer by their names in the checkpoint, in the order of its state dict.

    Raises:
        CheckpointError: If a parameter is part of no model.
    """
    named: dict[str, torch.Tensor] = {}
    groups = optimizer.strategy.optimizer_parameters(optimizer.optimizer, optimizer.models)
    for number, group in enumerate(groups):
        for name, parameter in group.items():
            if isinstance(name, int):
                raise CheckpointError(
                    f"A parameter of shape {tuple(parameter.shape)} in group {number} of the "
                    f"{type(optimizer.optimizer).__name__} is part of no prepared model, so its state has no name in a "
                    "sharded checkpoint. Prepare its model too, or set `state_dict_type` to `FULL_STATE_DICT`."
                )
            named[optimizer.names_in_file.get(name, name)] = parameter
    return named


def check_optimizer_state(optimizer: PreparedOptimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """Check that a state of full tensors belongs to an optimizer, and return it with all settings of the optimizer.

    torch itself compares only the sizes of the groups. A setting that an older release of the optimizer did not have
    keeps its value, with a warning.

    Raises:
        ValueError: If it does not; says why.
    """
    inner = optimizer.optimizer
    groups = list(state["param_groups"])
    parameters = optimizer.strategy.optimizer_parameters(inner, models=())
    shapes = [[parameter.shape for parameter in group.values()] for group in parameters]
    added: dict[str, Any] = {}
    if len(groups) != len(shapes):
        raise ValueError(f"it has {len(groups)} parameter groups, the optimizer {len(shapes)}")
    for number, (saved, here) in enumerate(zip(groups, shapes, strict=True)):
        if len(saved["params"]) != len(here):
            raise ValueError(
                f"group {number} has {len(saved['params'])} parameters, the optimizer's {len(here)}"
            )
        own = {**inner.defaults, **inner.param_groups[number]}
        missing = {name: own[name] for name in inner.defaults if name not in saved}
        distinctive = [name for name in missing if name in _DISTINCTIVE]
        if distinctive and not optimizer.is_of_saved_class:
            raise ValueError(
                f"group {number} has no `{distinctive[0]}`, so it is the state of another kind of optimizer"
            )
        groups[number] = {**missing, **saved}
        added |= missing
    numbers = [number for group in groups for number in group["params"]]
    for number, shape in zip(numbers, chain.from_iterable(shapes), strict=True):
        for name, value in state["state"].get(number, {}).items():
            if name in _LIKE_PARAMETER and isinstance(value, torch.Tensor) and value.shape != shape:
                raise ValueError(
                    f"`state.{number}.{name}` has the shape {tuple(value.shape)}, its parameter {tuple(shape)}"
                )
    if added:
        warn_user(
            f"The checkpoint of the `{type(inner).__name__}` lacks {_listed(list(added))}, as that of an older release "
            "does. The values of the optimizer stay."
        )
    return {**state, "param_groups": groups}


def check_names(saved: Sequence[str], own: Collection[str], file: str) -> None:
    """Compare the names of a saved optimizer's parameters with those of the optimizer here.

    Raises:
        CheckpointError: If they differ; names some of them.
    """
    known = set(saved)
    missing = [name for name in own if name not in known]
    unexpected = [name for name in saved if name not in own]
    if missing or unexpected:
        parts = [f"it lacks {_listed(missing)}"] if missing else []
        parts += [f"it has {_listed(unexpected)}, which the optimizer does not step"] if unexpected else []
        raise CheckpointError(
            f"`{file}` does not fit the optimizer: {'; '.join(parts)}. "
            "Make the optimizer of the saved run, with the same groups."
        )


def _renames_on_load(model: nn.Module) -> bool:
    """Whether only `load_state_dict` of the model itself knows which names and shapes fit."""
    return any(
        any(not _is_of_sharding(hook) for hook in module._load_state_dict_pre_hooks.values())
        or (
            type(module)._load_from_state_dict is not nn.Module._load_from_state_dict
            and not type(module).__module__.startswith("torch.nn.")
        )
        for module in model.modules()
    )


def _is_of_sharding(hook: Any) -> bool:
    """Whether it is the hook of `fully_shard`, which does not rename anything."""
    module = str(getattr(getattr(hook, "hook", hook), "__module__", ""))
    return module.startswith("torch.distributed.fsdp._fully_shard")


def _misfits(own: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...] | None]) -> list[str]:
    missing = [name for name in own if name not in shapes]
    if missing:
        second_names = _second_names(own, shapes)
        missing = [name for name in missing if name not in second_names]
    others = [
        f"`{name}` has the shape {shape} instead of {tuple(own[name].shape)}"
        for name, shape in shapes.items()
        if shape is not None
        and isinstance(own.get(name), (torch.Tensor, DeferredTensor))
        and shape != tuple(own[name].shape)
    ]
    return [
        *_key_misfits(missing, [name for name in shapes if name not in own]),
        *others[:5],
        *([f"{len(others) - 5} more shapes differ"] if len(others) > 5 else []),
    ]


def _second_names(own: Mapping[str, Any], loaded: Collection[str]) -> set[str]:
    """Return the model's keys whose tensor was loaded under another key, such as those of tied weights."""
    first_names = ties_in(own)
    groups: dict[str, list[str]] = {}
    for name in own:
        groups.setdefault(first_names.get(name, name), []).append(name)
    return {name for names in groups.values() if any(one in loaded for one in names) for name in names}


def _key_misfits(missing: list[str], unexpected: list[str]) -> list[str]:
    misfits = [f"it lacks {_listed(missing)}"] if missing else []
    return misfits + ([f"it has {_listed(unexpected)}, which the model does not have"] if unexpected else [])


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(f"`{name}`" for name in names[:5]) + more
