"""Each model whole, in the files that every reader of safetensors or `torch.load` knows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from accel_backends.checkpoint_formats.protocol import CheckpointFormat
from accel_checkpoint.file_names import numbers_of_models
from accel_checkpoint.pieces import Piece
from accel_checkpoint.reading.weights import files_of_model, open_weights
from accel_checkpoint.saving.pending_files import PendingFile, pending_weights
from accel_state.errors import CheckpointError


class FullFormat(CheckpointFormat):
    """`model.safetensors` or `pytorch_model.bin`, or shards of them by size and an index."""

    name: ClassVar[str] = "full"

    def recognises(self, names: Collection[str], *, index: int) -> bool:
        """Whether there are weight files of that model."""
        return index in numbers_of_models(names)

    def model_files(
        self,
        pieces: Iterable[Piece],
        *,
        index: int,
        is_writer: bool,
        safe: bool,
        max_shard_size: int | str | None,
    ) -> list[PendingFile]:
        """Return the weight files, on the rank that writes the pieces."""
        state: dict[str, Any] = {}
        for piece in pieces:
            if not piece.is_whole:
                raise CheckpointError(
                    f"`{piece.name}` of model {index} is spread over several ranks; the format `{self.name}` needs it "
                    "whole. Gather the state first."
                )
            if piece.is_writer:
                state |= dict.fromkeys((piece.name, *piece.aliases), piece.local)
        if not state and not is_writer:
            return []
        return pending_weights(state, index=index, safe=safe, max_shard_size=max_shard_size)

    @contextmanager
    def open_model(self, folder: Path, *, index: int) -> Iterator[Mapping[str, Any]]:
        """Give the state, mapped from its files."""
        with open_weights(files_of_model(folder, index)) as state:
            yield state
