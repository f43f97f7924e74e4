"""The state in a `torch.distributed.checkpoint` folder, read part by part by any number of processes."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator
from typing import Any

import torch

from accel_checkpoint.file_names import METADATA_NAME
from accel_checkpoint.files import naming_read_errors
from accel_checkpoint.formats.distributed_metadata import Chunk, Entry, read_metadata
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_checkpoint.saved_files import SavedFiles
from accel_state.errors import CheckpointError


class DistributedState:
    """One state in a folder of parts and a table; nothing is read before it is asked for.

    Args:
        files: The files of the checkpoint.
        name: The folder of the state among them; empty if they are the same.

    Raises:
        CheckpointError: If there is no readable table.
    """

    def __init__(self, files: SavedFiles, name: str) -> None:
        self._files, self._prefix = files, f"{name}/" if name else ""
        self.entries = read_metadata(files.path(self._prefix + METADATA_NAME))
        self._opened = set[str]()

    def below(self, *path: str | int) -> Iterator[tuple[tuple[str | int, ...], Entry]]:
        """Yield the entries whose path begins so, with the rest of it."""
        for entry in self.entries.values():
            if entry.path[: len(path)] == path:
                yield entry.path[len(path) :], entry

    def value(self, entry: Entry) -> Any:
        """Return a whole tensor, or another value."""
        if entry.dtype is None:
            return self._content(entry.chunks[0], entry)
        tensor = torch.empty(entry.shape, dtype=entry.dtype)
        self.read_into(tensor, entry, (0,) * len(entry.shape))
        return tensor

    def open(self, entry: Entry, sizes: tuple[int, ...], offset: tuple[int, ...]) -> None:
        """Request the files that hold a part of a tensor, which compares them with the manifest; see `SavedFiles`."""
        for chunk in entry.chunks:
            if chunk.file not in self._opened and (
                entry.dtype is None or _common(offset, sizes, chunk) is not None
            ):
                self._opened.add(chunk.file)
                self._files.path(self._prefix + chunk.file)

    @torch.no_grad()
    def read_into(self, part: torch.Tensor, entry: Entry, offset: tuple[int, ...]) -> None:
        """Fill ``part``, which lies at ``offset`` of the whole tensor, on any device and in any type.

        Raises:
            CheckpointError: If a file is damaged, or the parts that were saved leave something out.
        """
        filled = 0
        for chunk in entry.chunks:
            common = _common(offset, tuple(part.shape), chunk)
            if common is None:
                continue
            here, there = common
            saved = self._content(chunk, entry)
            if (
                not isinstance(saved, torch.Tensor)
                or tuple(saved.shape) != chunk.sizes
                or saved.dtype != entry.dtype
            ):
                path = self._files.folder / (self._prefix + chunk.file)
                raise CheckpointError(
                    f"`{path}` does not hold the part of `{entry.key}` that the table promises. "
                    "Copy or save the checkpoint again."
                )
            target = part[here] if here else part
            target.copy_(saved[there] if there else saved)
            filled += target.numel()
        if filled != part.numel():
            raise CheckpointError(
                f"The parts of `{entry.key}` in `{self._files.folder / self._prefix}` do not make up the whole: "
                f"{filled} of {part.numel()} values are there. Copy or save the checkpoint again."
            )

    def _content(self, chunk: Chunk, entry: Entry) -> Any:
        path = self._files.path(self._prefix + chunk.file)
        with naming_read_errors(path), path.open("rb") as file:
            if chunk.start + chunk.num_bytes > os.fstat(file.fileno()).st_size:
                raise CheckpointError(
                    f"`{path}` ends before the part of `{entry.key}`. Copy or save it again."
                )
            file.seek(chunk.start)
            return read_torch_file(io.BytesIO(file.read(chunk.num_bytes)), path=path)


def _common(
    offset: tuple[int, ...], sizes: tuple[int, ...], chunk: Chunk
) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """Return what a wanted part and a saved one have in common, as slices of each; None if it is nothing."""
    begins = [max(one, other) for one, other in zip(offset, chunk.offset, strict=True)]
    ends = [
        min(one + size, other + length)
        for one, size, other, length in zip(offset, sizes, chunk.offset, chunk.sizes, strict=True)
    ]
    if math.prod(max(0, end - begin) for begin, end in zip(begins, ends, strict=True)) == 0:
        return None
    return tuple(
        tuple(
            slice(begin - start, end - start) for begin, end, start in zip(begins, ends, starts, strict=True)
        )
        for starts in (offset, chunk.offset)
    )  # type: ignore[return-value]
