"""Copy the weights of a checkpoint into a model."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from accel.checkpoints.prepared import class_name
from accel_backends import Strategy
from accel_backends.checkpoint_formats.protocol import SavedState
from accel_bigmodel.offload.placeholders import weight_of
from accel_checkpoint.formats.deferred import DeferredTensor, second_deferred_names
from accel_checkpoint.pieces import ties_in
from accel_checkpoint.reading.strictness import Strictness
from accel_ops.named_tensors import tied_names
from accel_state.errors import CheckpointError


@dataclass(frozen=True)
class ModelFiles:
    """The files of one model in a checkpoint, and the model that they are for.

    Attributes:
        strategy: Loads the state.
        model: The prepared model.
        file_name: What messages call the files.
        index: Which model it is.
        strict: Whether a mismatch is an error or a warning.
    """

    strategy: Strategy
    model: nn.Module
    file_name: str
    index: int
    strict: Strictness

    def check(self, saved: SavedState) -> None:
        """Report all names and shapes that do not fit, before anything is loaded."""
        bare = self._bare
        with self.strict.loading(self.file_name, self._into):
            if saved.is_per_rank:
                _reject_meta_parameters(bare, {}, into=self._into)
                saved.read(self.strategy.own_model_state(self.model))
                return
            own = self.strategy.state_to_fill(self.model)
            _reject_meta_parameters(bare, own, into=self._into)
            if _renames_on_load(bare):
                return
            shapes = saved.shapes()
            missing = [name for name in own if name not in shapes]
            if missing:
                second_names = _second_names(own, shapes)
                missing = [name for name in missing if name not in second_names]
            unexpected = [name for name in shapes if name not in own]
            others = [
                f"`{name}` has the shape {shape} instead of {tuple(own[name].shape)}"
                for name, shape in shapes.items()
                if shape is not None
                and isinstance(own.get(name), (torch.Tensor, DeferredTensor))
                and shape != tuple(own[name].shape)
            ]
            self._report(missing, unexpected, others)

    def load(self, saved: SavedState) -> None:
        """Copy the state into the model."""
        with self.strict.loading(self.file_name, self._into), _without_placeholder_warnings():
            if saved.is_per_rank:
                held = self.strategy.own_model_state(self.model)
                held.fill(saved.read(held))
                return
            own = {} if _renames_on_load(self._bare) else self.strategy.state_to_fill(self.model)
            state = saved.read(own)
            outcome = self.strategy.load_model_state(self.model, state, strict=False)
            if not _renames_on_load(self._bare) or outcome is None:
                return
            tied = {
                name
                for names in tied_names(self._bare)
                if any(one in state for one in names)
                for name in names
            }
            missing = [name for name in outcome.missing_keys if name not in tied]
            self._report(missing, list(outcome.unexpected_keys), [])

    @property
    def _bare(self) -> nn.Module:
        return self.strategy.unwrap(self.model, keep_torch_compile=False)

    @property
    def _into(self) -> str:
        return f"model {self.index} ({class_name(type(self._bare)).rpartition('.')[2]})"

    def _report(self, missing: list[str], unexpected: list[str], others: list[str]) -> None:
        parts = [f"it lacks {_listed(missing)}"] if missing else []
        parts += [f"it has {_listed(unexpected)}, which the model does not have"] if unexpected else []
        parts += others[:5] + ([f"{len(others) - 5} more shapes differ"] if len(others) > 5 else [])
        if parts:
            self.strict.report(f"`{self.file_name}` does not fit {self._into}: {'; '.join(parts)}.")


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
    """Whether it is the hook of `fully_shard`, which leaves names alone."""
    return str(getattr(getattr(hook, "hook", hook), "__module__", "")).startswith(
        "torch.distributed.fsdp._fully_shard"
    )


def _reject_meta_parameters(model: nn.Module, own: Mapping[str, Any], *, into: str) -> None:
    """Reject parameters on the meta device, except offloaded weights and what is deferred, which can be loaded."""
    for name, parameter in model.named_parameters():
        if isinstance(own.get(name), DeferredTensor):
            continue
        if parameter.is_meta and weight_of(parameter) is None:
            raise CheckpointError(
                f"`{name}` of {into} is on the meta device, so there is no memory to load it into. "
                "Allocate it first, for example with `to_empty`."
            )


@contextmanager
def _without_placeholder_warnings() -> Iterator[None]:
    """Suppress torch's warning that copying into a meta parameter has no effect; for offloaded weights it has."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*copying from a non-meta parameter in the checkpoint")
        yield


def _second_names(own: Mapping[str, Any], loaded: Collection[str]) -> set[str]:
    """Return the model's keys whose tensor was loaded under another key, such as those of tied weights."""
    first_names = ties_in(own) | second_deferred_names(own)
    groups: dict[str, list[str]] = {}
    for name in own:
        groups.setdefault(first_names.get(name, name), []).append(name)
    return {name for names in groups.values() if any(one in loaded for one in names) for name in names}


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(f"`{name}`" for name in names[:5]) + more
