"""The parts of a model of megatron-core and its optimizer as a format of checkpoints, for any layout of the ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, cast

import torch

from accel_backends.checkpoint_formats.protocol import (
    CheckpointFormat,
    PreparedModel,
    PreparedOptimizer,
    SaveChoices,
    SavedModel,
)
from accel_backends.strategies.megatron.packages import core
from accel_backends.strategies.strategy import Strategy
from accel_checkpoint.file_names import ENGINES
from accel_checkpoint.files import SavedFiles
from accel_checkpoint.formats.distributed import Destination, DistributedState, Entry
from accel_checkpoint.pieces import Piece
from accel_checkpoint.saving.distributed_files import DistributedPart, part_of_rank
from accel_state.errors import CheckpointError, ConfigError

_MODEL = re.compile(r"pytorch_model(?:_(\d+))?/megatron_model/\.metadata")
_OPTIMIZER = re.compile(r"pytorch_model/megatron_optimizer_(\d+)/\.metadata")
_COMMON = "common"
_PARTS, _OBJECTS = "parts", "objects"
_KIND = "param_state_sharding_type"
"""What megatron-core's distributed optimizer adds to its state."""


class _Opaque(Mapping[str, Any]):
    """A state that other methods hand out. Checkpoints pass states as mappings; as such it is empty."""

    def __getitem__(self, key: str) -> Any:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class ShardedState(_Opaque):
    """The state of a model or an optimizer as megatron-core describes it: which part of which tensor is here.

    Args:
        describe: Returns the description anew; for loading where its argument is True.
        load: Takes the same state with values of its own in place of the parts.
        is_saved: Whether checkpoints have it.
        is_loaded: Whether it is loaded from those that have it.
    """

    def __init__(
        self,
        describe: Callable[[bool], dict[str, Any]],
        load: Callable[[dict[str, Any]], None],
        *,
        is_saved: bool = True,
        is_loaded: bool = True,
    ) -> None:
        self.describe = describe
        self.load = load
        self.is_saved = is_saved
        self.is_loaded = is_loaded

    def pieces(self, *, is_first: bool) -> Iterator[tuple[Piece, tuple[str, ...]]]:
        """Yield what this rank holds, with its path; ``is_first`` says whether it writes what all have in common."""
        mapping = core("dist_checkpointing.mapping")
        dicts = core("dist_checkpointing.dict_utils")
        tree, _, _ = core("dist_checkpointing.state_dict_utils").load_preprocess(self.describe(False))
        sharded, common = dicts.extract_matching_values(
            tree, lambda value: isinstance(value, mapping.ShardedBase)
        )
        yield Piece(_COMMON, common, is_writer=is_first), (_COMMON,)
        for leaf in dicts.nested_values(sharded):
            is_writer = mapping.is_main_replica(leaf.replica_id)
            if isinstance(leaf, mapping.ShardedObject):
                yield Piece(leaf.unique_key, leaf.data, is_writer=is_writer), (_OBJECTS, leaf.unique_key)
            else:
                part = leaf.data.detach().view((1,) * leaf.prepend_axis_num + tuple(leaf.local_shape))
                yield (
                    Piece(leaf.key, part, tuple(leaf.global_shape), tuple(leaf.global_offset), is_writer),
                    (_PARTS, leaf.key),
                )

    def fill(self, saved: Mapping[str, Any]) -> None:
        """Load what a checkpoint has for it; ``saved`` is a `SavedParts`."""
        self.load(cast(SavedParts, saved).values_of(self.describe(True)))


class MegatronFormat(CheckpointFormat):
    """`pytorch_model/megatron_model/` and `pytorch_model/megatron_optimizer_0/`: of each rank the parts that it holds.

    Ranks in any layout read them with megatron-core, which describes what each holds.
    """

    name: ClassVar[str] = "megatron"
    needs_shared_disk: ClassVar[bool] = True

    def indexes_in(self, names: Collection[str]) -> tuple[list[int], list[int]]:
        """Return the indexes of the models and of the optimizers that have files in this format."""
        models = sorted(int(match[1] or 0) for match in map(_MODEL.fullmatch, names) if match)
        return models, sorted(int(match[1]) for match in map(_OPTIMIZER.fullmatch, names) if match)

    def model_files(
        self, state: Mapping[str, Any], *, index: int, choices: SaveChoices
    ) -> list[DistributedPart]:
        """Return the part of this rank."""
        return [_part(self.model_file(index), state, choices)]

    def optimizer_files(
        self, optimizer: PreparedOptimizer, *, index: int, choices: SaveChoices
    ) -> list[DistributedPart]:
        """Return the part of this rank; nothing with `no_save_optim`."""
        own = self._parts_of(optimizer)
        return [_part(self.optimizer_file(index), own, choices)] if own.is_saved else []

    def model_state(self, model: PreparedModel) -> Mapping[str, Any]:
        """Return which parts of a model are here."""
        parts: ShardedState = _holder(model.strategy).parts_of_model(model.model)
        return parts

    def open_model(self, files: SavedFiles, model: PreparedModel, *, index: int) -> SavedModel:
        """Return the parts of a model; each rank reads what overlaps its own."""
        name = self.model_file(index)
        if model.key_map:
            raise ConfigError(
                f"`key_map` does not apply to `{name}`, whose names are those of megatron-core. Leave it out."
            )
        own = cast(ShardedState, self.model_state(model))
        return _SavedModel(SavedParts(DistributedState(files, name), name), own)

    def model_file(self, index: int) -> str:
        """Return the folder of a model."""
        return f"{ENGINES.name(index)}/megatron_model"

    def optimizer_file(self, index: int) -> str:
        """Return the folder of an optimizer."""
        return f"{ENGINES.name(0)}/megatron_optimizer_{index}"

    def open_optimizer(
        self, files: SavedFiles, optimizer: PreparedOptimizer, *, index: int
    ) -> Callable[[], None]:
        """Read the state, and return a function that loads it; with `no_load_optim` it does nothing."""
        own = self._parts_of(optimizer)
        if not own.is_loaded:
            return lambda: None
        name = self.optimizer_file(index)
        saved = SavedParts(DistributedState(files, name), name)
        description = own.describe(True)
        if saved.common().get(_KIND) != description.get(_KIND):
            raise CheckpointError(
                f"`{name}` was saved {'with' if _KIND in saved.common() else 'without'} `use_distributed_optimizer`, "
                "whose states megatron-core does not exchange with others. Set it as it was, or load with "
                "`no_load_optim` of the MegatronLMPlugin."
            )
        return partial(own.load, saved.values_of(description))

    def _parts_of(self, optimizer: PreparedOptimizer) -> ShardedState:
        parts: ShardedState = _holder(optimizer.strategy).parts_of_optimizer(optimizer.optimizer)
        return parts


class SavedParts(_Opaque):
    """A state in a checkpoint, of which each rank reads what overlaps its parts.

    Args:
        saved: The files.
        name: What messages call them.
    """

    def __init__(self, saved: DistributedState, name: str) -> None:
        self._name = name
        self._saved = saved
        self._entries: dict[tuple[Any, ...], Entry] = dict(saved.below())

    def common(self) -> dict[str, Any]:
        """Return what all ranks have in common."""
        found: dict[str, Any] = self._saved.value(self._entries[(_COMMON,)])
        return found

    def check(self, description: dict[str, Any]) -> None:
        """Request the files that this rank reads; refuse a checkpoint that lacks a tensor or has another shape of it.

        Raises:
            CheckpointError: Naming it.
        """
        tree, _, _ = core("dist_checkpointing.state_dict_utils").load_preprocess(description)
        mapping = core("dist_checkpointing.mapping")
        for leaf in core("dist_checkpointing.dict_utils").nested_values(tree):
            if isinstance(leaf, mapping.ShardedTensor):
                part = torch.empty((1,) * leaf.prepend_axis_num + tuple(leaf.local_shape), device="meta")
                self._saved.open([Destination(part, self._entry_of(leaf), tuple(leaf.global_offset))])

    def values_of(self, description: dict[str, Any]) -> dict[str, Any]:
        """Return the state that is described, with values in place of the parts."""
        mapping, dicts = core("dist_checkpointing.mapping"), core("dist_checkpointing.dict_utils")
        tree, own, factories = core("dist_checkpointing.state_dict_utils").load_preprocess(description)
        sharded, _ = dicts.extract_matching_values(tree, lambda value: isinstance(value, mapping.ShardedBase))
        dicts.dict_list_map_inplace(self._value, sharded)
        common = self.common()
        for part in (own, sharded):
            common = dicts.merge(common, part)
        loaded: dict[str, Any] = mapping.apply_factory_merges(common, factories)
        return loaded

    def _entry_of(self, leaf: Any) -> Entry:
        entry = self._entries.get((_PARTS, leaf.key))
        if entry is None:
            raise CheckpointError(
                f"`{self._name}` lacks `{leaf.key}`, which the model or optimizer has. "
                "Load it into the model and the optimizer that it was saved from."
            )
        if entry.shape != tuple(leaf.global_shape) and not leaf.allow_shape_mismatch:
            raise CheckpointError(
                f"`{leaf.key}` in `{self._name}` has the shape {entry.shape} instead of {tuple(leaf.global_shape)}. "
                "Load it into the model and the optimizer that it was saved from."
            )
        return entry

    def _value(self, leaf: Any) -> Any:
        if not hasattr(leaf, "global_offset") or not hasattr(leaf, "local_shape"):
            entry = self._entries.get((_OBJECTS, leaf.unique_key))
            return leaf.data if entry is None else self._saved.value(entry)
        entry = self._entry_of(leaf)
        value = torch.zeros(tuple(leaf.local_shape), dtype=leaf.dtype, device=leaf.data.device)
        part = value.view((1,) * leaf.prepend_axis_num + tuple(leaf.local_shape))
        for dim, (start, size, total) in enumerate(
            zip(leaf.global_offset, part.shape, entry.shape, strict=True)
        ):
            if start + size > total:  # padding, which another number of ranks has less of
                part = part.narrow(dim, 0, max(total - start, 0))
        if part.numel():
            self._saved.read([Destination(part, entry, tuple(leaf.global_offset))])
        return value


class _SavedModel(SavedModel):
    def __init__(self, parts: SavedParts, own: ShardedState) -> None:
        self._parts = parts
        self._own = own

    def misfits(self) -> list[str]:
        """Return nothing: parts that do not fit raise an error.

        Raises:
            CheckpointError: If a tensor is missing, or has another shape.
        """
        self._parts.check(self._own.describe(True))
        return []

    def load(self) -> list[str]:
        self._own.fill(self._parts)
        return []


def _holder(strategy: Strategy) -> Any:
    if strategy.checkpoint_format != MegatronFormat.name:
        raise CheckpointError(
            "The checkpoint holds parts of a model of megatron-core, and this run has none. Load it with the "
            "MegatronLMPlugin."
        )
    return strategy


def _part(folder: str, state: Mapping[str, Any], choices: SaveChoices) -> DistributedPart:
    found = list(cast(ShardedState, state).pieces(is_first=choices.rank == 0))
    paths = {piece.name: path for piece, path in found}
    return part_of_rank(folder, [piece for piece, _ in found], paths, rank=choices.rank)
