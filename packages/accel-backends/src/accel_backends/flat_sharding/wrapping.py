"""Shard a model: give it its values, unit by unit, and wrap each unit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from torch import nn
from torch.distributed.fsdp import FlatParameter, FullyShardedDataParallel
from torch.utils.weak import WeakIdKeyDictionary

from accel_backends.flat_sharding.flat_model import FlatModel, state_shapes
from accel_backends.flat_sharding.settings import FlatSettings
from accel_backends.flat_sharding.units import check_uniform
from accel_backends.sharding.replacements import ReplacedParameters
from accel_backends.sharding.replicated import ReplicatedParameters
from accel_backends.sharding.shard import store_in_fp32
from accel_backends.sharding.units import ROOT, ShardGroup, tensors_of_groups
from accel_backends.sharding.values import check_same_model, refuse_missing, take_values_of_rank_0
from accel_ops.named_tensors import NamedTensor, named_tensors


def flatten_model(
    model: nn.Module,
    units: Sequence[ShardGroup],
    settings: FlatSettings,
    *,
    whole: Collection[str],
    replaced: ReplacedParameters,
) -> FlatModel:
    """Wrap ``model`` and its units; parameters become parts of one flat parameter per unit.

    Every rank must call it. All ranks take the values of rank 0; other ranks may hold them on the meta device.
    At no time is more than one unit held in whole beside what the caller keeps.

    Args:
        model: The model.
        units: From `flat_units`; the root is the last.
        settings: How to shard.
        whole: First names of the parameters that stay whole on every rank.
        replaced: Told which parameters optimizers find in place of their own.

    Raises:
        ConfigError: If the ranks have different models, rank 0 has no values, or parameters of a unit cannot be
            flattened together.
    """
    tensors = named_tensors(model)
    shapes = state_shapes(model, tensors)
    aliases = {name: found.names[0] for found in tensors for name in found.names[1:]}
    missing = check_same_model(tensors, device=settings.device)
    if settings.init_module is None:
        refuse_missing(missing)
    modules = dict(model.named_modules(remove_duplicate=False))
    known = _Successors()
    ignored: list[nn.Parameter] = []
    for unit, of_unit in zip(units, tensors_of_groups(model, units), strict=True):
        (name,) = unit.modules
        parameters = [found for found in of_unit if found.is_parameter]
        owned = [found for found in parameters if found.names[0] not in whole]
        # Noted before the values come, since a parameter on the meta device is replaced by another then.
        originals = {found.names[0]: cast(nn.Parameter, found.tensor) for found in parameters}
        _give_values(of_unit, owned, settings)
        check_uniform(name, owned, use_orig_params=settings.use_orig_params)
        ignored += [cast(nn.Parameter, found.tensor) for found in parameters if found.names[0] in whole]
        successors = {found.names[0]: cast(nn.Parameter, found.tensor) for found in parameters}
        flat: nn.Parameter | None = None
        if owned or name == ROOT:
            wrapped = _wrap(modules[name], settings, ignored=ignored)
            _replace_child(model, modules[name], wrapped)
            flat = _flat_parameter(wrapped)
            if flat is not None:
                successors |= dict.fromkeys((found.names[0] for found in owned), flat)
        known.note(originals, successors, flat=flat, replaced=replaced)
        if settings.is_sharding:
            known.sharded |= {id(successors[found.names[0]]) for found in owned}
    with wrapped.no_sync():
        # What first enters this makes the memory for gathered parameters. Made in a forward under inference mode, it
        # could not be trained in later (torch 2.13).
        pass
    return FlatModel(
        root=wrapped,
        whole=ReplicatedParameters(wrapped, ignored, settings.mesh),
        shapes=shapes,
        aliases=aliases,
        originals=known.originals,
        names=known.names,
        sharded=frozenset(known.sharded),
    )


@dataclass(slots=True)
class _Successors:
    """What took the place of the parameters of a model; see `FlatModel`."""

    originals: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)
    names: dict[int, tuple[str, ...]] = field(default_factory=dict)
    sharded: set[int] = field(default_factory=set)

    def note(
        self,
        originals: Mapping[str, nn.Parameter],
        successors: Mapping[str, nn.Parameter],
        *,
        flat: nn.Parameter | None,
        replaced: ReplacedParameters,
    ) -> None:
        """Note the parameters of one unit, by their first names; what was flattened gives its memory back."""
        for first, successor in successors.items():
            replaced.record(originals[first], successor)
            self.originals[originals[first]] = first
            if successor is flat:
                # An optimizer that was made before must not keep the memory of the whole model.
                originals[first].data = originals[first].data.new_empty(0)
            self.names[id(successor)] = (*self.names.get(id(successor), ()), first)


def _give_values(
    of_unit: Sequence[NamedTensor], owned: Sequence[NamedTensor], settings: FlatSettings
) -> None:
    """Give the tensors of a unit the values of rank 0, in the format in which they are kept, without gradients."""
    _initialise(of_unit, settings.init_module)
    take_values_of_rank_0(of_unit, device=settings.device)
    if settings.mixed_precision.param_dtype is not None:
        store_in_fp32(found.tensor for found in of_unit if found.is_parameter)
    for found in owned:
        # Of the whole parameter, which is no more.
        found.tensor.grad = None


def _wrap(
    module: nn.Module, settings: FlatSettings, *, ignored: list[nn.Parameter]
) -> FullyShardedDataParallel:
    with warnings.catch_warnings():
        # The user asked for it, or nothing can be cut.
        warnings.filterwarnings("ignore", message="The `NO_SHARD` sharding strategy is deprecated")
        return FullyShardedDataParallel(module, ignored_states=ignored or None, **settings.arguments())


def _initialise(tensors: Sequence[NamedTensor], init_module: Callable[[nn.Module], None] | None) -> None:
    """Let ``init_module`` give the modules their values that hold tensors on the meta device; ties stay."""
    if init_module is None:
        return
    waiting = {module: None for found in tensors if found.tensor.is_meta for module, _ in found.places}
    for module in waiting:
        init_module(module)
    for found in tensors:
        first, key = found.places[0]
        store = first._parameters if found.is_parameter else first._buffers
        value = store[key]
        assert value is not None
        for module, other in found.places[1:]:
            (module._parameters if found.is_parameter else module._buffers)[other] = value  # type: ignore[assignment]
        found.tensor = value


def _flat_parameter(unit: FullyShardedDataParallel) -> nn.Parameter | None:
    """Return the flat parameter that optimizers step, None if they step the original ones."""
    registered = unit.module.parameters(recurse=False)
    return next((parameter for parameter in registered if isinstance(parameter, FlatParameter)), None)


def _replace_child(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    for module in list(model.modules()):
        for key, child in module._modules.items():
            if child is old and module is not new:
                module._modules[key] = new
