"""Each rank writes the shards that it holds, into folders that `torch.distributed.checkpoint` reads, too."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, ClassVar

import torch

from accel_backends.checkpoint_formats.named import (
    NamedFormat,
    SavedState,
    check_names,
    named_parameters,
)
from accel_backends.checkpoint_formats.protocol import PreparedOptimizer, SaveChoices
from accel_backends.fsdp.state import HeldTensor
from accel_checkpoint.file_names import MODEL_TABLES, OPTIMIZER_TABLES, SHARDED_MODELS, SHARDED_OPTIMIZERS
from accel_checkpoint.files import SavedFiles
from accel_checkpoint.formats.distributed import Destination, DistributedState, Entry
from accel_checkpoint.pieces import Piece, empty_like_shard, local_pieces, pieces_of
from accel_checkpoint.saving.distributed_files import DistributedPart, part_of_rank
from accel_checkpoint.tensors import DeferredTensor, is_plain
from accel_state.errors import CheckpointError

_MODEL, _OPTIMIZER = "model", "optimizer"
_STATE, _GROUPS = "state", "param_groups"
_Path = tuple[str | int, ...]


# Why: docs/decisions/0012-sharded-checkpoints-are-written-without-dcp.md
class ShardedFormat(NamedFormat):
    """`pytorch_model_fsdp_0/` and `optimizer_0/`: parts by rank and a table, with names for keys.

    Any number of ranks reads them, in any layout and strategy.
    """

    name: ClassVar[str] = "sharded"
    needs_shared_disk: ClassVar[bool] = True

    def indexes_in(self, names: Collection[str]) -> tuple[list[int], list[int]]:
        """Return the indexes of the models and of the optimizers that have a table."""
        return MODEL_TABLES.numbers(names), OPTIMIZER_TABLES.numbers(names)

    def model_files(
        self, state: Mapping[str, Any], *, index: int, choices: SaveChoices
    ) -> list[DistributedPart]:
        """Return the part of this rank."""
        paths: dict[str, _Path] = {name: (_MODEL, name) for name in state}
        return [_part(SHARDED_MODELS.name(index), state, paths, choices)]

    def optimizer_files(
        self, optimizer: PreparedOptimizer, *, index: int, choices: SaveChoices
    ) -> list[DistributedPart]:
        """Return the part of this rank; parameters have their names in them."""
        state = optimizer.strategy.optimizer_tensors(optimizer.optimizer)
        flat: dict[str, Any] = {}
        paths: dict[str, _Path] = {}
        names = list(named_parameters(optimizer))
        numbers = [number for group in state[_GROUPS] for number in group["params"]]
        name_of = dict(zip(numbers, names, strict=True))

        def add(path: _Path, value: Any) -> None:
            key = ".".join(map(str, path))
            flat[key], paths[key] = value, path

        for number, values in state[_STATE].items():
            for kind, value in values.items():
                add((_OPTIMIZER, _STATE, name_of[number], kind), value)
        for index_of_group, group in enumerate(state[_GROUPS]):
            for kind, value in group.items():
                if kind == "params":
                    value = [name_of[number] for number in value]
                add((_OPTIMIZER, _GROUPS, index_of_group, kind), value)
        return [_part(SHARDED_OPTIMIZERS.name(index), flat, paths, choices)]

    def open_state(self, files: SavedFiles, *, index: int) -> _SavedModel:
        """Return the state; each rank reads what overlaps its shards."""
        return _SavedModel(DistributedState(files, SHARDED_MODELS.name(index)))

    def model_file(self, index: int) -> str:
        """Return the name that messages use for the files of a model."""
        return SHARDED_MODELS.name(index)

    def optimizer_file(self, index: int) -> str:
        """Return the folder of an optimizer."""
        return SHARDED_OPTIMIZERS.name(index)

    def read_optimizer(
        self, files: SavedFiles, optimizer: PreparedOptimizer, *, index: int
    ) -> Mapping[str, Any]:
        """Return the state; each rank reads what overlaps its shards."""
        saved = DistributedState(files, self.optimizer_file(index))
        groups: dict[int, dict[str, Any]] = {}
        of_groups = saved.below(_OPTIMIZER, _GROUPS)
        values = saved.values([entry for _, entry in of_groups])
        for ((number, kind), _), value in zip(of_groups, values, strict=True):
            groups.setdefault(int(number), {})[str(kind)] = value
        own = named_parameters(optimizer)
        numbers = {name: number for number, name in enumerate(own)}
        named = [name for number in sorted(groups) for name in groups[number]["params"]]
        check_names(named, numbers, self.optimizer_file(index))
        state: dict[int, dict[str, Any]] = {}
        destinations: list[Destination] = []
        for path, entry in saved.below(_OPTIMIZER, _STATE):
            name, kind = str(path[0]), str(path[1])
            if name not in numbers:
                raise CheckpointError(
                    f"`{self.optimizer_file(index)}` has a state of `{name}`, but no such parameter. Load it "
                    "into the model and the optimizer of the saved run."
                )
            parameter = own[name]
            if isinstance(parameter, HeldTensor):
                if parameter.value is None:
                    continue  # other ranks hold and read it
                parameter = parameter.value
            if isinstance(parameter, DeferredTensor):
                value = _deferred(saved, entry)
            elif entry.dtype is None:
                value = saved.value(entry)
            else:
                if entry.shape == tuple(parameter.shape) != ():
                    value = empty_like_shard(parameter, entry.dtype)
                else:
                    value = torch.empty(entry.shape, dtype=entry.dtype, device="cpu")
                destinations += [Destination(part, entry, offset) for offset, part in local_pieces(value)]
            state.setdefault(numbers[name], {})[kind] = value
        saved.read(destinations)
        return {
            _STATE: {number: state[number] for number in sorted(state)},
            _GROUPS: [
                {**groups[number], "params": sorted(numbers[name] for name in groups[number]["params"])}
                for number in sorted(groups)
            ],
        }


class _SavedModel(SavedState):
    def __init__(self, saved: DistributedState) -> None:
        self._saved = saved
        self._entries = {str(path[0]): entry for path, entry in saved.below(_MODEL) if len(path) == 1}
        self.shapes = {
            name: None if entry.dtype is None else entry.shape for name, entry in self._entries.items()
        }
        self._known: tuple[object, list[tuple[Entry, Any, list[Destination] | None]]] | None = None

    def open(self, own: Mapping[str, Any]) -> None:
        wanted: list[Destination] = []
        for entry, _, destinations in self._places(own):
            if destinations is None:
                destinations = [
                    Destination(torch.empty(entry.shape, device="meta"), entry, (0,) * len(entry.shape))
                ]
            wanted += destinations
        self._saved.open(wanted)

    def read(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tensors of ``own``, filled; those without memory of their own are read in whole.

        What other ranks hold is left out.
        """
        state: dict[str, Any] = {}
        wanted: list[Destination] = []
        for entry, value, destinations in self._places(own):
            name = str(entry.path[1])
            if destinations is not None:
                wanted += destinations
                state[name] = value
            elif isinstance(value, DeferredTensor):
                state[name] = _deferred(self._saved, entry)
            else:
                state[name] = self._saved.value(entry)
        self._saved.read(wanted)
        return state

    def _places(self, own: Mapping[str, Any]) -> list[tuple[Entry, Any, list[Destination] | None]]:
        """Return the entries that this rank reads, with the value in ``own``, and where it is filled.

        None in place of destinations: the value has no memory to read into.
        """
        if self._known is not None and self._known[0] is own:
            return self._known[1]
        wanted: list[tuple[Entry, Any, list[tuple[tuple[int, ...], torch.Tensor]]]] = []
        for name, entry in self._entries.items():
            value = own.get(name)
            if isinstance(value, HeldTensor):
                if value.value is None:
                    continue  # other ranks hold and read it
                value = value.value
            pieces = local_pieces(value) if isinstance(value, torch.Tensor) and not value.is_meta else []
            wanted.append((entry, value, pieces))
        places: list[tuple[Entry, Any, list[Destination] | None]] = []
        for entry, value, pieces in wanted:
            is_filled = bool(pieces) and all(is_plain(part) for _, part in pieces)
            destinations = [Destination(part, entry, offset) for offset, part in pieces]
            places.append((entry, value, destinations if is_filled else None))
        self._known = own, places  # `open` and `read` get the same
        return places


def _deferred(saved: DistributedState, entry: Entry) -> Any:
    """Return a tensor that is read in whole when it is fetched; numbers and other values are read now."""
    if entry.dtype is None or not entry.shape:
        return saved.value(entry)
    return DeferredTensor(entry.dtype, torch.Size(entry.shape), partial(saved.value, entry))


def _part(
    folder: str, state: Mapping[str, Any], paths: Mapping[str, _Path], choices: SaveChoices
) -> DistributedPart:
    return part_of_rank(folder, _pieces(state, choices), paths, rank=choices.rank)


def _pieces(state: Mapping[str, Any], choices: SaveChoices) -> list[Piece]:
    """Return the pieces that this rank holds; what only some ranks hold is written by these."""
    of_all: dict[str, Any] = {}
    of_some: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in state.items():
        if not isinstance(value, HeldTensor):
            of_all[name] = value
        elif value.value is not None:
            of_some.setdefault(value.holders[0], {})[name] = value.value
    pieces = list(pieces_of(of_all, is_writer=choices.is_writer))
    for first_rank, held in of_some.items():
        pieces += pieces_of(held, is_writer=choices.rank == first_rank, first_rank=first_rank)
    return pieces
