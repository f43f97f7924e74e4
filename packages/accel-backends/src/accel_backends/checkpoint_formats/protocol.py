"""What every format of a checkpoint offers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch

from accel_checkpoint.saved_files import SavedFiles
from accel_checkpoint.saving.pending_files import CollectiveFile, MergedFile, PendingFile

Parameters = Callable[[], Mapping[str, torch.Tensor]]
"""Gives the parameters of an optimizer by name, in the order of their numbers."""


@dataclass(frozen=True, slots=True)
class SaveChoices:
    """How this rank takes part in a save.

    Attributes:
        rank: This process.
        is_writer: Whether it writes what every rank holds.
        safe: safetensors, rather than `torch.save`, where the format leaves the choice.
        max_shard_size: Largest size of one weight file; None: as large as it gets.
        engine_options: Further arguments for an engine that saves by itself.
    """

    rank: int
    is_writer: bool
    safe: bool = True
    max_shard_size: int | str | None = None
    engine_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one state.

    Attributes:
        own: Those that this rank writes.
        collective: Those that all ranks write together.
        merged: Those that rank 0 writes when all ranks have written theirs.
    """

    own: Sequence[PendingFile] = ()
    collective: Sequence[CollectiveFile] = ()
    merged: Sequence[MergedFile] = ()


class SavedState(Protocol):
    """A state in a checkpoint, of which only names and shapes are known before it is read."""

    is_per_rank: ClassVar[bool] = False
    """Whether it is compared with, and copied into, what `Strategy.own_model_state` returns."""

    def shapes(self) -> Mapping[str, tuple[int, ...] | None]:
        """Return the shape of each tensor in whole, None for other values."""
        ...

    def open(self, own: Mapping[str, Any]) -> None:
        """Request the files that ``read(own)`` reads, unless that has been done already; see `SavedFiles`."""

    def read(self, own: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what a strategy loads in place of ``own``: whole tensors, or those of ``own``, filled.

        Where those of ``own`` are deferred, they are too.
        """
        ...


class CheckpointFormat(Protocol):
    """Writes states to files, and reads them back; chosen by the strategy to save, and by what is there to load.

    States are what `Strategy.local_model_state` and `Strategy.local_optimizer_state` return: tensors of which this
    rank holds a part are `DTensor`s. Every rank makes the same calls.
    """

    name: ClassVar[str]
    needs_shared_disk: ClassVar[bool]
    """Whether all ranks must write to one file system."""
    is_per_rank: ClassVar[bool] = False
    """Whether states are what `Strategy.own_model_state` and `Strategy.own_optimizer_state` return, which is also what
    `read_optimizer` takes in place of parameters, and what it returns is for the optimizer itself to load."""
    opens_all: ClassVar[bool] = False
    """Whether `open_model` and `read_optimizer` open all files, so that these may be replaced before they are read."""
    save_arguments: ClassVar[frozenset[str]] = frozenset()
    """Arguments of `save_state` that only this format knows, which it finds in `SaveChoices.engine_options`."""

    def model_numbers(self, names: Collection[str]) -> list[int]:
        """Return the sorted indexes of the models that ``names``, the files of a checkpoint, hold in this format."""
        ...

    def model_files(self, state: Mapping[str, Any], *, index: int, choices: SaveChoices) -> Files:
        """Return the files of a model.

        Raises:
            CheckpointError: If the format cannot hold the state.
        """
        ...

    def optimizer_files(
        self, state: Mapping[str, Any], parameters: Parameters, *, index: int, choices: SaveChoices
    ) -> Files:
        """Return the files of an optimizer.

        Args:
            state: Its state, in which parameters have numbers.
            parameters: Its parameters by name, in the order of their numbers; called where needed.
            index: Which optimizer it is.
            choices: How this rank takes part.
        """
        ...

    def open_model(self, files: SavedFiles, *, index: int) -> SavedState:
        """Return the state of a model, of which only names and shapes have been read.

        Raises:
            CheckpointError: If a file is missing or damaged.
        """
        ...

    def optimizer_numbers(self, names: Collection[str]) -> list[int]:
        """Return the sorted indexes of the optimizers that ``names`` hold in this format."""
        ...

    def model_file(self, index: int) -> str:
        """Return the name that messages use for the files of a model."""
        ...

    def optimizer_file(self, index: int) -> str:
        """Return the name of the file or folder of an optimizer."""
        ...

    def read_optimizer(self, files: SavedFiles, parameters: Parameters, *, index: int) -> Mapping[str, Any]:
        """Return the state of an optimizer: whole tensors, or parts placed like the parameters, or deferred like them.

        Args:
            files: The files of the checkpoint.
            parameters: The parameters of the optimizer by name, in the order of their numbers; called where needed.
            index: Which optimizer it is.

        Raises:
            CheckpointError: If a file is missing or damaged, or the state is not that of these parameters.
        """
        ...
