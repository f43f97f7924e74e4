"""The state of a model on its way into one: whether it fits, and how it is loaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

from accel_backends.checkpoint_formats.protocol import SavedState
from accel_backends.strategies.protocol import Strategy
from accel_checkpoint.formats.deferred import DeferredTensor, second_deferred_names
from accel_checkpoint.pieces import ties_in
from accel_ops.named_tensors import tied_names
from accel_state.errors import ConfigError


class RenamedState(SavedState):
    """A saved state under the names of a model with other prefixes.

    Args:
        saved: The state.
        prefixes: Prefix in the model by the prefix in the checkpoint. The longest match counts; the empty prefix
            matches every name.
    """

    def __init__(self, saved: SavedState, prefixes: Mapping[str, str]) -> None:
        longest_first = sorted(prefixes, key=len, reverse=True)

        def renamed(name: str) -> str:
            prefix = next((one for one in longest_first if name.startswith(one)), None)
            return name if prefix is None else prefixes[prefix] + name.removeprefix(prefix)

        self._saved = saved
        self._renamed = {name: renamed(name) for name in saved.shapes()}
        self.names_in_file = {new: name for name, new in self._renamed.items()}
        if len(self.names_in_file) < len(self._renamed):
            doubled = next(new for new in self._renamed.values() if [*self._renamed.values()].count(new) > 1)
            raise ConfigError(
                f"`key_map` gives two weights of the checkpoint the same name `{doubled}`. Use longer prefixes."
            )

    def shapes(self) -> dict[str, tuple[int, ...] | None]:
        """Return the shape of each tensor in whole, None for other values."""
        return {self._renamed[name]: shape for name, shape in self._saved.shapes().items()}

    def open(self, own: Mapping[str, Any]) -> None:
        self._saved.open(self._own_by_saved_name(own))

    def read(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a strategy loads in place of ``own``."""
        saved = self._saved.read(self._own_by_saved_name(own))
        return {self._renamed[name]: value for name, value in saved.items()}

    def _own_by_saved_name(self, own: Mapping[str, Any]) -> dict[str, Any]:
        return {name: own[new] for name, new in self._renamed.items() if new in own}


def check_model(strategy: Strategy, model: nn.Module, saved: SavedState) -> list[str]:
    """Request the files of ``saved``, and return what of it does not fit the prepared ``model``; nothing is loaded.

    Raises:
        CheckpointError: If each rank reads only what it wrote, and that was split in another way.
    """
    if saved.is_per_rank:
        saved.read(strategy.own_model_state(model))
        return []
    if _renames_on_load(strategy.unwrap(model, keep_torch_compile=False)):
        saved.open({})
        return []
    own, shapes = strategy.state_to_fill(model), saved.shapes()
    saved.open(own)
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


def load_model(strategy: Strategy, model: nn.Module, saved: SavedState) -> list[str]:
    """Copy ``saved`` into the prepared ``model``, and return what did not fit and only the model itself could tell."""
    if saved.is_per_rank:
        own_state = strategy.own_model_state(model)
        own_state.fill(saved.read(own_state))
        return []
    bare = strategy.unwrap(model, keep_torch_compile=False)
    renames = _renames_on_load(bare)
    state = saved.read({} if renames else strategy.state_to_fill(model))
    outcome = strategy.load_model_state(model, state, strict=False)
    if not renames or outcome is None:
        return []
    tied = {name for names in tied_names(bare) if any(other in state for other in names) for name in names}
    return _key_misfits(
        [name for name in outcome.missing_keys if name not in tied], list(outcome.unexpected_keys)
    )


def _renames_on_load(model: nn.Module) -> bool:
    """Whether only `load_state_dict` itself knows which names and shapes fit."""
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


def _second_names(own: Mapping[str, Any], loaded: Collection[str]) -> set[str]:
    """Return the model's keys whose tensor was loaded under another key, such as those of tied weights."""
    first_names = ties_in(own) | second_deferred_names(own)
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
