"""Full tensors, in the files that every reader of safetensors or `torch.load` knows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.distributed.tensor import DTensor

from accel_backends.checkpoint_formats.named import NamedFormat, SavedState
from accel_backends.checkpoint_formats.protocol import PreparedOptimizer, SaveChoices
from accel_backends.fsdp.state import deferred_optimizer_state, deferred_state
from accel_checkpoint.file_names import OPTIMIZERS, numbers_of_models, weight_format
from accel_checkpoint.files import SavedFiles
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_checkpoint.formats.weight_files import read_model
from accel_checkpoint.saving.model_weights import pending_weights
from accel_checkpoint.saving.pending_files import PendingFile, TorchFile
from accel_checkpoint.tensors import DeferredTensor


class FullFormat(NamedFormat):
    """`model.safetensors` or `pytorch_model.bin`, or shards of them by size and an index, and `optimizer.bin`."""

    name: ClassVar[str] = "full"
    needs_shared_disk: ClassVar[bool] = False
    opens_all: ClassVar[bool] = True

    def indexes_in(self, names: Collection[str]) -> tuple[list[int], list[int]]:
        """Return the indexes of the models that have weight files, and of the optimizers that have one."""
        return numbers_of_models(names), OPTIMIZERS.numbers(names)

    def model_file(self, index: int) -> str:
        """Return the name of the weight files in messages."""
        return weight_format(index, safe=True).whole

    def optimizer_file(self, index: int) -> str:
        """Return the file of an optimizer."""
        return OPTIMIZERS.name(index)

    def model_files(
        self, state: Mapping[str, Any], *, index: int, choices: SaveChoices
    ) -> Sequence[PendingFile]:
        """Return the weight files; each sharded tensor is gathered when it is written."""
        if _is_sharded(state.values()):
            state = deferred_state(state, is_writer=choices.is_writer)
        elif not choices.is_writer:
            return []
        return pending_weights(
            state,
            index=index,
            safe=choices.safe,
            max_shard_size=choices.max_shard_size,
            is_writer=choices.is_writer,
        )

    def optimizer_files(
        self, optimizer: PreparedOptimizer, *, index: int, choices: SaveChoices
    ) -> Sequence[PendingFile]:
        """Return the file; sharded tensors are gathered when it is written."""
        content = optimizer.strategy.optimizer_tensors(optimizer.optimizer)
        if _is_sharded(value for values in content["state"].values() for value in values.values()):
            content = deferred_optimizer_state(content, is_writer=choices.is_writer)
        elif not choices.is_writer:
            return []
        name = self.optimizer_file(index)
        return [TorchFile(name, content, is_trained=True, is_writer=choices.is_writer)]

    def open_state(self, files: SavedFiles, *, index: int) -> FullState:
        """Return the state, mapped from its files."""
        return FullState(read_model(files, index))

    def read_optimizer(
        self, files: SavedFiles, optimizer: PreparedOptimizer, *, index: int
    ) -> Mapping[str, Any]:
        """Return the state, mapped from its file."""
        state: Mapping[str, Any] = read_torch_file(files.path(self.optimizer_file(index)), mmap=True)
        return state


class FullState(SavedState):
    """The state of a model in full tensors.

    Args:
        state: The state.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state
        self.shapes = {
            name: tuple(value.shape) if isinstance(value, torch.Tensor) else None
            for name, value in state.items()
        }

    def read(self, own: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the tensors, mapped from their files."""
        return self._state


def _is_sharded(values: Iterable[Any]) -> bool:
    return any(isinstance(value, (DTensor, DeferredTensor)) for value in values)
