"""Each state whole, in the files that every reader of safetensors or `torch.load` knows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch

from accel_backends.checkpoint_formats.protocol import (
    CheckpointFormat,
    Files,
    Parameters,
    SaveChoices,
    SavedState,
)
from accel_backends.sharding.full_state import deferred_optimizer_state, deferred_state
from accel_checkpoint.file_names import (
    OPTIMIZER_NAME,
    numbered_file,
    numbers_of,
    numbers_of_models,
    weight_format,
)
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_checkpoint.formats.weight_files import read_model
from accel_checkpoint.saved_files import SavedFiles
from accel_checkpoint.saving.pending_files import CollectiveFile, PendingFile, TorchFile, pending_weights


class FullFormat(CheckpointFormat):
    """`model.safetensors` or `pytorch_model.bin`, or shards of them by size and an index, and `optimizer.bin`."""

    name: ClassVar[str] = "full"
    needs_shared_disk: ClassVar[bool] = False
    opens_all: ClassVar[bool] = True

    def model_numbers(self, names: Collection[str]) -> list[int]:
        """Return the indexes of the models that have files in this format."""
        return numbers_of_models(names)

    def model_files(self, state: Mapping[str, Any], *, index: int, choices: SaveChoices) -> Files:
        """Return the weight files; parts of a tensor are gathered while it is written."""
        whole = deferred_state(state, is_writer=choices.is_writer)
        files = pending_weights(whole, index=index, safe=choices.safe, max_shard_size=choices.max_shard_size)
        return _shared_out(files, choices)

    def optimizer_files(
        self, state: Mapping[str, Any], parameters: Parameters, *, index: int, choices: SaveChoices
    ) -> Files:
        """Return the file; parts of a tensor are gathered while it is written."""
        content = deferred_optimizer_state(state, is_writer=choices.is_writer)
        file = TorchFile(self.optimizer_file(index), content)
        return _shared_out([file], choices)

    def open_model(self, files: SavedFiles, *, index: int) -> WholeState:
        """Return the state, mapped from its files."""
        return WholeState(read_model(files, index))

    def optimizer_numbers(self, names: Collection[str]) -> list[int]:
        """Return the indexes of the optimizers that have a file."""
        return numbers_of(OPTIMIZER_NAME, names)

    def model_file(self, index: int) -> str:
        """Return the name that messages use for the files of a model."""
        return weight_format(index, safe=True).whole

    def optimizer_file(self, index: int) -> str:
        """Return the file of an optimizer."""
        return numbered_file(OPTIMIZER_NAME, index)

    def read_optimizer(self, files: SavedFiles, parameters: Parameters, *, index: int) -> Mapping[str, Any]:
        """Return the state, mapped from its file."""
        state: Mapping[str, Any] = read_torch_file(files.path(self.optimizer_file(index)), mmap=True)
        return state


def _shared_out(files: Sequence[PendingFile], choices: SaveChoices) -> Files:
    """Return what this rank does about files that may hold deferred tensors: write, take part, or nothing."""
    own: list[PendingFile] = []
    collective: list[CollectiveFile] = []
    for file in files:
        if order := file.deferred():
            collective.append(CollectiveFile(order, file if choices.is_writer else None))
        elif choices.is_writer:
            own.append(file)
    return Files(own, collective)


class WholeState(SavedState):
    """The state of a model, whole.

    Args:
        state: It.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state

    def shapes(self) -> dict[str, tuple[int, ...] | None]:
        """Return the shape of each tensor, None for other values."""
        return {
            name: tuple(value.shape) if isinstance(value, torch.Tensor) else None
            for name, value in self._state.items()
        }

    def read(self, own: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the tensors as they are mapped."""
        return self._state
