"""The protocol of checkpoint formats: how the states of models and optimizers are stored in files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from accel_backends.strategies.protocol import Strategy
from accel_checkpoint.files import SavedFiles
from accel_checkpoint.saving.pending_files import PendingFile


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
class PreparedOptimizer:
    """An optimizer that a strategy has prepared.

    Attributes:
        strategy: The strategy.
        optimizer: The optimizer, as `Strategy.prepare_optimizer` returned it.
        models: The prepared models; its parameters have their names in them.
        names_in_file: Names that parameters have in a checkpoint, by their names in the models, as far as they differ.
    """

    strategy: Strategy
    optimizer: torch.optim.Optimizer
    models: Sequence[nn.Module]
    names_in_file: Mapping[str, str] = field(default_factory=dict)


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
    """Whether `open_model` and `read_optimizer` open all files, so that these may be replaced before they are read."""
    save_arguments: ClassVar[frozenset[str]] = frozenset()
    """Arguments of `save_state` that only this format knows; they are in `SaveChoices.engine_options`."""

    @abstractmethod
    def model_numbers(self, names: Collection[str]) -> list[int]:
        """Return the sorted indexes of the models in this format among ``names``, the files of a checkpoint."""

    @abstractmethod
    def optimizer_numbers(self, names: Collection[str]) -> list[int]:
        """Return the sorted indexes of the optimizers in this format among ``names``."""

    @abstractmethod
    def model_file(self, index: int) -> str:
        """Return the name of the files of a model in messages."""

    @abstractmethod
    def optimizer_file(self, index: int) -> str:
        """Return the name of the file or folder of an optimizer."""

    @abstractmethod
    def model_state(self, strategy: Strategy, model: nn.Module) -> Mapping[str, Any]:
        """Return the state of a prepared model that `model_files` takes. It may communicate.

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
    def open_model(
        self,
        files: SavedFiles,
        strategy: Strategy,
        model: nn.Module,
        *,
        index: int,
        key_map: Mapping[str, str] | None = None,
    ) -> SavedModel:
        """Request the files of a model, and return its state, of which only names and shapes have been read.

        Args:
            files: The files of the checkpoint.
            strategy: The strategy that prepared the model.
            model: The prepared model.
            index: Index of the model in the checkpoint.
            key_map: Prefixes of names in the model, by the prefixes in the checkpoint.

        Raises:
            CheckpointError: If a file is missing or damaged.
            ConfigError: If ``key_map`` does not apply.
        """

    @abstractmethod
    def read_optimizer(
        self, files: SavedFiles, optimizer: PreparedOptimizer, *, index: int
    ) -> Mapping[str, Any]:
        """Return the state of an optimizer, which may be mapped from its files; changes nothing.

        Raises:
            CheckpointError: If a file is missing or damaged, or the state is not that of the optimizer's parameters.
            ValueError: If the state does not fit the optimizer; says why.
        """

    @abstractmethod
    def load_optimizer(self, optimizer: PreparedOptimizer, state: Mapping[str, Any]) -> None:
        """Copy a state of `read_optimizer` into the optimizer. It may communicate."""
