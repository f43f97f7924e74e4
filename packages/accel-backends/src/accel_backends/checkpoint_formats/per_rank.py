"""Each rank writes what it holds, as it holds it, and reads it again."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, cast

from accel_backends.checkpoint_formats.protocol import (
    CheckpointFormat,
    PreparedModel,
    PreparedOptimizer,
    SaveChoices,
    SavedModel,
)
from accel_backends.flat_sharding.own_values import RankParts
from accel_backends.optimizer import in_memory
from accel_backends.strategies.capabilities import HoldsParts
from accel_backends.strategies.strategy import Strategy
from accel_checkpoint.file_names import MODELS_OF_RANKS, OPTIMIZERS_OF_RANKS, FileKind
from accel_checkpoint.files import SavedFiles
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_checkpoint.saving.pending_files import TorchFile
from accel_state.errors import CheckpointError, ConfigError


class PartsFormat(CheckpointFormat):
    """A format of what the ranks of a strategy hold, in the form in which they hold it."""

    parts: ClassVar[str]
    """What such a checkpoint holds, in messages."""
    hint: ClassVar[str] = ""
    """How to change the strategy of a run, if its strategy can save in another format."""

    @abstractmethod
    def open_parts(self, files: SavedFiles, own: Mapping[str, Any], *, index: int) -> SavedModel:
        """Return the parts of a model for those that this rank holds.

        Raises:
            CheckpointError: If a file is missing or damaged.
        """

    def model_state(self, model: PreparedModel) -> Mapping[str, Any]:
        """Return the parts of this rank."""
        return self.holder(model.strategy).parts_of_model(model.model)

    def holder(self, strategy: Strategy) -> HoldsParts:
        """Return the strategy, if its ranks hold parts.

        Raises:
            CheckpointError: If they do not.
        """
        if not isinstance(strategy, HoldsParts):
            raise CheckpointError(
                f"The format `{self.name}` holds {self.parts}, and this run has none. Load such a checkpoint with the "
                f"strategy that saved it. {self.hint}".rstrip()
            )
        return strategy

    def open_model(self, files: SavedFiles, model: PreparedModel, *, index: int) -> SavedModel:
        """Return the parts of a model."""
        if model.key_map:
            raise ConfigError(
                f"`key_map` does not apply to `{self.model_file(index)}`: each rank reads what it wrote, whatever its "
                'names. Save with `state_dict_type="SHARDED_STATE_DICT"`.'
            )
        return self.open_parts(files, self.model_state(model), index=index)


class PerRankFormat(PartsFormat):
    """`pytorch_model_fsdp_rank0.bin`, `optimizer_rank0.bin` and so on: shards of flat parameters as they are.

    Nothing is gathered. Only as many ranks can read them, with the same model and the same flat parameters.
    """

    name: ClassVar[str] = "per_rank"
    parts: ClassVar[str] = "parts of flat parameters, as `fsdp_version=1` has them"
    hint: ClassVar[str] = 'To change it, save with `state_dict_type="SHARDED_STATE_DICT"` there.'
    needs_shared_disk: ClassVar[bool] = False

    def indexes_in(self, names: Collection[str]) -> tuple[list[int], list[int]]:
        """Return the indexes of the models and of the optimizers that have files in this format."""
        return MODELS_OF_RANKS.numbers(names), OPTIMIZERS_OF_RANKS.numbers(names)

    def model_file(self, index: int) -> str:
        """Return the name of the files of a model in messages."""
        return MODELS_OF_RANKS.name(index, 0)

    def optimizer_file(self, index: int) -> str:
        """Return the name of the files of an optimizer in messages."""
        return OPTIMIZERS_OF_RANKS.name(index, 0)

    def model_files(self, state: Mapping[str, Any], *, index: int, choices: SaveChoices) -> list[TorchFile]:
        """Return the file of this rank."""
        return [_file(MODELS_OF_RANKS, cast(RankParts, state), index)]

    def optimizer_files(
        self, optimizer: PreparedOptimizer, *, index: int, choices: SaveChoices
    ) -> list[TorchFile]:
        """Return the file of this rank."""
        own = self.holder(optimizer.strategy).parts_of_optimizer(optimizer.optimizer)
        return [_file(OPTIMIZERS_OF_RANKS, cast(RankParts, own), index)]

    def open_parts(self, files: SavedFiles, own: Mapping[str, Any], *, index: int) -> _SavedParts:
        """Return the parts; each rank reads its own."""
        return _SavedParts(files, cast(RankParts, own), index)

    def open_optimizer(
        self, files: SavedFiles, optimizer: PreparedOptimizer, *, index: int
    ) -> Callable[[], None]:
        """Read what this rank wrote, and return a function that loads it; the flat parameters are the same."""
        inner = optimizer.optimizer
        own = self.holder(optimizer.strategy).parts_of_optimizer(inner)
        state = _read(files, OPTIMIZERS_OF_RANKS, cast(RankParts, own), index)
        return lambda: inner.load_state_dict(in_memory(inner, state))


class _SavedParts(SavedModel):
    """What each rank wrote of a model, for what it holds now."""

    def __init__(self, files: SavedFiles, own: RankParts, index: int) -> None:
        self._files = files
        self._own = own
        self._index = index

    def misfits(self) -> list[str]:
        """Return nothing: parts that do not fit raise an error.

        Raises:
            CheckpointError: If another number of ranks wrote them, or of a model that was sharded differently.
        """
        self._read()
        return []

    def load(self) -> list[str]:
        self._own.fill(self._read())
        return []

    def _read(self) -> Mapping[str, Any]:
        return _read(self._files, MODELS_OF_RANKS, self._own, self._index)


def _file(kind: FileKind, own: RankParts, index: int) -> TorchFile:
    content = {"rank": own.rank, "num_ranks": own.num_ranks, "cut": own.slices, "values": dict(own)}
    return TorchFile(kind.name(index, own.rank), content, is_trained=True)


def _read(files: SavedFiles, kind: FileKind, own: RankParts, index: int) -> Mapping[str, Any]:
    name = kind.name(index, own.rank)
    ranks = kind.ranks(index, files.names)
    # A rank without a file reads the number of ranks in that of another.
    found = kind.name(index, ranks[0]) if ranks and own.rank not in ranks else name
    content = read_torch_file(files.path(found), mmap=True)
    if content["num_ranks"] != own.num_ranks:
        raise _misfit(found, f"it is of {content['num_ranks']} ranks, and this run has {own.num_ranks}")
    if found != name:
        raise CheckpointError(
            f"`{name}`, the part of rank {own.rank}, is missing in `{files.folder}`. Copy it there."
        )
    if own.slices is None:
        raise _misfit(name, f"it holds {PerRankFormat.parts}, and this run has none")
    differing = [
        key for key in {**content["cut"], **own.slices} if content["cut"].get(key) != own.slices.get(key)
    ]
    if differing:
        raise _misfit(
            name, f"`{differing[0]}` was cut from other tensors, or in another way, than in this run"
        )
    values: Mapping[str, Any] = content["values"]
    return values


def _misfit(name: str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"`{name}` cannot be loaded: {reason}. What `LOCAL_STATE_DICT` saved can be read by as many ranks alone, with "
        'the same model and plugin. Load it so, and save with `state_dict_type="SHARDED_STATE_DICT"`, which any '
        "number of ranks reads."
    )
