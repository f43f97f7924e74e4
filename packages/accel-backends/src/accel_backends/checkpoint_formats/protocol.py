"""The protocol of checkpoint formats: how the states of models and optimizers are stored in files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from accel_checkpoint.file_names import MODELS_OF_RANKS
from accel_checkpoint.files import SavedFiles
from accel_checkpoint.saving.pending_files import PendingFile
from accel_state.errors import CheckpointError
from accel_state.registry import Registry

if TYPE_CHECKING:
    from accel_backends.strategies.strategy import Strategy


@dataclass(frozen=True, slots=True)
class SaveChoices:
    """How this rank takes part in a save.

    Attributes:
        rank: This process.
        is_writer: Whether it writes what every rank has in full.
        safe: Whether weights are written as safetensors and not by `torch.save`, if the format offers both.
        max_shard_size: Maximum size of one weight file; None writes a single file.
        engine_options: Further arguments for an engine that saves by itself.
    """

    rank: int
    is_writer: bool
    safe: bool = True
    max_shard_size: int | str | None = None
    engine_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model that a strategy has prepared.

    Attributes:
        strategy: The strategy.
        model: The user's model, without wrappers.
        key_map: Prefixes of names in the model, by the prefixes in the checkpoint to load.
    """

    strategy: Strategy
    model: nn.Module
    key_map: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PreparedOptimizer:
    """An optimizer that a strategy has prepared.

    Attributes:
        strategy: The strategy.
        optimizer: The user's optimizer, without wrappers.
        models: The users' models; its parameters have their names in them.
        names_in_file: Names that parameters have in a checkpoint, by their names in the models, as far as they differ.
        is_of_saved_class: Whether the checkpoint is known to be of an optimizer of this class.
    """

    strategy: Strategy
    optimizer: torch.optim.Optimizer
    models: Sequence[nn.Module]
    names_in_file: Mapping[str, str] = field(default_factory=dict)
    is_of_saved_class: bool = False


class SavedModel(ABC):
    """The state of a model in a checkpoint, and the prepared model that it is loaded into."""

    names_in_file: Mapping[str, str] = {}
    """Names of weights in the checkpoint, by those in the model, as far as they differ."""

    @abstractmethod
    def misfits(self) -> list[str]:
        """Return what does not fit, in words; loads nothing.

        Raises:
            CheckpointError: If the state is that of another number of ranks, and only as many can read it.
        """

    @abstractmethod
    def load(self) -> list[str]:
        """Copy the state into the model, and return the misfits that only the model itself detects."""


class CheckpointFormat(ABC):
    """Writes the states of models and optimizers to files and reads them.

    A strategy names the format that it saves in; a checkpoint is read in the format that its manifest or its file
    names tell. Every rank makes the same calls.
    """

    name: ClassVar[str]
    needs_shared_disk: ClassVar[bool]
    """Whether all ranks must write to one file system."""
    opens_all: ClassVar[bool] = False
    """Whether `open_model` and `open_optimizer` open all files, so that these may be replaced before they are read."""
    save_arguments: ClassVar[frozenset[str]] = frozenset()
    """Arguments of `save_state` that only this format knows; they are in `SaveChoices.engine_options`."""

    @abstractmethod
    def indexes_in(self, names: Collection[str]) -> tuple[list[int], list[int]]:
        """Return the sorted indexes of the models and of the optimizers in this format.

        Args:
            names: The files of a checkpoint.
        """

    @abstractmethod
    def model_file(self, index: int) -> str:
        """Return the name of the files of a model in messages."""

    @abstractmethod
    def optimizer_file(self, index: int) -> str:
        """Return the name of the file or folder of an optimizer."""

    @abstractmethod
    def model_state(self, model: PreparedModel) -> Mapping[str, Any]:
        """Return the state of a model that `model_files` takes. It may communicate.

        Raises:
            CheckpointError: If the format cannot hold what the strategy has.
        """

    @abstractmethod
    def model_files(
        self, state: Mapping[str, Any], *, index: int, choices: SaveChoices
    ) -> Sequence[PendingFile]:
        """Return the files of a model.

        Raises:
            CheckpointError: If the format cannot hold the state.
        """

    @abstractmethod
    def optimizer_files(
        self, optimizer: PreparedOptimizer, *, index: int, choices: SaveChoices
    ) -> Sequence[PendingFile]:
        """Return the files of an optimizer. It may communicate.

        Raises:
            CheckpointError: If the format cannot hold the state.
        """

    @abstractmethod
    def open_model(self, files: SavedFiles, model: PreparedModel, *, index: int) -> SavedModel:
        """Request the files of a model, and return its state, of which only names and shapes have been read.

        Raises:
            CheckpointError: If a file is missing or damaged.
            ConfigError: If ``key_map`` does not apply.
        """

    @abstractmethod
    def open_optimizer(
        self, files: SavedFiles, optimizer: PreparedOptimizer, *, index: int
    ) -> Callable[[], None]:
        """Read the state of an optimizer, and return a function that copies it into the optimizer.

        The state may be mapped from its files until then. The function may communicate.

        Raises:
            CheckpointError: If a file is missing or damaged, or the state is not that of the optimizer's parameters.
            ValueError: If the state does not fit the optimizer; says why.
        """


def refuse_local_states(names: Collection[str]) -> None:
    """Check that ``names`` are not the files of `LOCAL_STATE_DICT`, which FSDP version 1 wrote once.

    Raises:
        CheckpointError: If they are; names one.
    """
    found = min(filter(MODELS_OF_RANKS.pattern.fullmatch, names), default=None)
    if found is not None:
        raise CheckpointError(
            f"`{found}` was saved with `LOCAL_STATE_DICT`, which holds flattened parameters and is no longer read. "
            'Load it with accel 0.2.0, and save it there with `state_dict_type="SHARDED_STATE_DICT"`.'
        )


FORMATS: Registry[Callable[[], CheckpointFormat]] = Registry("checkpoint format", "accel.checkpoint_formats")
