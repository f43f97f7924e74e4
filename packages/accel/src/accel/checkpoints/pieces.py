"""What a rank writes into a checkpoint: one piece per file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

import torch

from accel.checkpoints.giving_way import Work, at_once
from accel.checkpoints.layout import weight_format
from accel.checkpoints.manifest import FileEntry
from accel.checkpoints.plain_data import check_plain
from accel.checkpoints.sink import FileSink
from accel.checkpoints.snapshot import HostBuffers, map_tensors, without_waste
from accel_bigmodel.formats.pickle_files import PickleWriter
from accel_bigmodel.formats.safetensor_files import SafetensorsWriter
from accel_bigmodel.formats.safetensor_writing import write_safetensors
from accel_bigmodel.saving.sharding import plan_shards
from accel_bigmodel.tensors.shared_tensors import aliases
from accel_state.errors import CheckpointError

MAX_WRITERS = 4


class Piece(Protocol):
    """One file on its way into a checkpoint."""

    @property
    def name(self) -> str:
        """Name of the file, relative to the checkpoint's folder."""
        ...

    def copied_to(self, buffers: HostBuffers) -> Piece:
        """Return the piece as it is now; it no longer changes when training goes on."""
        ...

    def write(self, sink: FileSink) -> None:
        """Write the content."""
        ...


@dataclass(frozen=True)
class TorchPiece:
    """A file of `torch.save`, of plain data only."""

    name: str
    content: Any

    def __post_init__(self) -> None:
        check_plain(self.content, file_name=self.name)

    def copied_to(self, buffers: HostBuffers) -> Self:
        """Return the piece with copies of its tensors."""
        copied = map_tensors(self.content, lambda path, tensor: buffers.copy((self.name, *path), tensor))
        return replace(self, content=copied)

    def write(self, sink: FileSink) -> None:
        """Write the content."""
        torch.save(map_tensors(self.content, without_waste), sink)  # type: ignore[arg-type]


@dataclass(frozen=True)
class SafetensorsPiece:
    """A safetensors file."""

    name: str
    tensors: Mapping[str, torch.Tensor]
    metadata: Mapping[str, str]

    def copied_to(self, buffers: HostBuffers) -> Self:
        """Return the piece with copies of its tensors."""
        copied = map_tensors(
            dict(self.tensors), lambda path, tensor: buffers.copy((self.name, *path), tensor)
        )
        return replace(self, tensors=copied)

    def write(self, sink: FileSink) -> None:
        """Write the content."""
        write_safetensors(sink, self.tensors, metadata=self.metadata)


@dataclass(frozen=True)
class JsonPiece:
    """A file of JSON."""

    name: str
    content: Any

    def copied_to(self, buffers: HostBuffers) -> Self:
        """Return the piece: nothing in it changes."""
        return self

    def write(self, sink: FileSink) -> None:
        """Write the content."""
        sink.write(json.dumps(self.content, indent=2).encode() + b"\n")


def weight_pieces(
    state: Mapping[str, Any], *, index: int, safe: bool, max_shard_size: int | str | None
) -> list[Piece]:
    """Return the files for the weights of one model: one, or shards and their index.

    Args:
        state: State dict of the model.
        index: Which model it is.
        safe: safetensors, rather than `torch.save`.
        max_shard_size: Largest size of one file; None: one file whatever its size.

    Raises:
        CheckpointError: If a tensor has no values, or the format cannot hold it.
    """
    _refuse_meta(state, index=index)
    names = weight_format(index, safe=safe)
    writer: SafetensorsWriter | PickleWriter = SafetensorsWriter(state) if safe else PickleWriter(state)
    groups = list(writer.groups())
    if max_shard_size is None:
        shards = [[name for members, _ in groups for name in members]]
    else:
        shards = plan_shards(groups, max_shard_size=max_shard_size)
    second_names = aliases(state) if safe else {}

    def piece(name: str, members: list[str]) -> Piece:
        content = {member: state[member] for member in members}
        if not safe:
            return TorchPiece(name, content)
        second = {other: first for other, first in second_names.items() if first in content}
        return SafetensorsPiece(name, content, {"format": "pt", **second})

    if len(shards) == 1:
        return [piece(names.whole, shards[0])]
    files = {names.shard(number, num_shards=len(shards)): members for number, members in enumerate(shards, 1)}
    content = {
        "metadata": {"total_size": sum(size for _, size in groups)},
        "weight_map": {member: name for name, members in files.items() for member in members},
    }
    return [*(piece(name, members) for name, members in files.items()), JsonPiece(names.index, content)]


def write_pieces(
    pieces: list[Piece],
    folder: Path,
    *,
    rank: int,
    place: int,
    num_threads: int,
    run: Callable[[Work], None] = at_once,
) -> list[FileEntry]:
    """Write all pieces into ``folder``, several at a time, each forced to disk; return what they became.

    Args:
        pieces: What to write.
        folder: Where to; it is there.
        rank: Who writes.
        place: Which machine's part of the checkpoint it is.
        num_threads: Files that are written at a time.
        run: Does what takes long, from as many threads.
    """

    def write(piece: Piece) -> FileEntry:
        sink = write_piece(piece, folder, run=run)
        return FileEntry(piece.name, sink.num_bytes, sink.digest, rank=rank, place=place)

    if num_threads == 1 or len(pieces) < 2:
        return [write(piece) for piece in pieces]
    with ThreadPoolExecutor(min(num_threads, MAX_WRITERS), thread_name_prefix="accel-checkpoint") as pool:
        return list(pool.map(write, pieces))


def write_piece(
    piece: Piece, folder: Path, *, replace: bool = False, run: Callable[[Work], None] = at_once
) -> FileSink:
    """Write one piece into ``folder``, forced to disk; an existing file of that name is in the way."""
    path = folder / piece.name
    if replace:
        path.unlink(missing_ok=True)
    with FileSink(path, run=run) as sink:
        piece.write(sink)
    return sink


def _refuse_meta(state: Mapping[str, Any], *, index: int) -> None:
    empty = [name for name, value in state.items() if isinstance(value, torch.Tensor) and value.is_meta]
    if empty:
        raise CheckpointError(
            f"`{empty[0]}` of model {index} cannot be saved: on the meta device a tensor has no values. "
            "Load the weights first, for example with `load_checkpoint_in_model`."
        )
