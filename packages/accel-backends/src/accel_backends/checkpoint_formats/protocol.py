"""What every format of a checkpoint offers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Protocol

from accel_checkpoint.pieces import Piece
from accel_checkpoint.saving.pending_files import PendingFile


class CheckpointFormat(Protocol):
    """Writes pieces to files, and reads them back; chosen by the strategy to save, and by what is there to load."""

    name: ClassVar[str]

    def recognises(self, names: Collection[str], *, index: int) -> bool:
        """Whether ``names``, the files of a checkpoint, hold the model of that index in this format."""
        ...

    def model_files(
        self,
        pieces: Iterable[Piece],
        *,
        index: int,
        is_writer: bool,
        safe: bool,
        max_shard_size: int | str | None,
    ) -> list[PendingFile]:
        """Return the files that this rank writes of a model.

        Args:
            pieces: The model's state.
            index: Which model it is.
            is_writer: Whether this rank writes what every rank holds.
            safe: safetensors, rather than `torch.save`, where the format leaves the choice.
            max_shard_size: Largest size of one file; None: as large as it gets.

        Raises:
            CheckpointError: If the format cannot hold the pieces.
        """
        ...

    def open_model(self, folder: Path, *, index: int) -> AbstractContextManager[Mapping[str, Any]]:
        """Give the whole state of a model; its tensors are good inside the context.

        Raises:
            CheckpointError: If a file is missing or damaged.
        """
        ...
