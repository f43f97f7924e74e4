"""The files of a state that all ranks write together, as `torch.distributed.checkpoint` lays them out."""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.serialization import get_crc32_options, set_crc32_options

from accel_checkpoint.file_names import METADATA_NAME
from accel_checkpoint.formats.distributed import Chunk, Entry, encode_metadata
from accel_checkpoint.pieces import Piece
from accel_checkpoint.saving.pending_files import FileSink, PendingFile
from accel_checkpoint.saving.snapshot import HostBuffers
from accel_checkpoint.tensors import check_plain, compact_on_cpu, map_tensors, nonfinite_in

Keys = tuple[str | int, ...]
_BATCH_BYTES = 1 << 20


@dataclass(frozen=True)
class DistributedPart(PendingFile):
    """One rank's part of a state: consecutive `torch.save` files, one per piece.

    Attributes:
        name: File name, with the folder of the state.
        pieces: The pieces that this rank writes.
        paths: The keys of each entry, by its name.
    """

    name: str
    pieces: Sequence[Piece]
    paths: Mapping[str, Keys]

    def __post_init__(self) -> None:
        check_plain({piece.name: piece.local for piece in self.pieces}, file_name=self.name)

    def snapshot(self, buffers: HostBuffers) -> DistributedPart:
        """Return the file with copies of its tensors."""
        copies = buffers.snapshot([piece.local for piece in self.pieces])
        return replace(
            self,
            pieces=[replace(piece, local=local) for piece, local in zip(self.pieces, copies, strict=True)],
        )

    def write(self, sink: FileSink) -> str:
        """Write the pieces, and their locations in a note next to the file."""
        notes, nonfinite = [], ""
        small = (
            io.BytesIO()
        )  # `torch.save` writes a piece in some forty parts, which are slow to take in Python
        with _without_crc32():
            for piece in self.pieces:
                is_tensor = isinstance(piece.local, torch.Tensor)
                copied = compact_on_cpu if is_tensor else partial(map_tensors, copy=compact_on_cpu)
                content = copied(piece.local)
                nonfinite = nonfinite or nonfinite_in({piece.name: content})
                if small.tell() > _BATCH_BYTES or (is_tensor and content.nbytes > _BATCH_BYTES):
                    sink.write(small.getvalue())
                    small.seek(0)
                    small.truncate()
                start = sink.num_bytes + small.tell()
                torch.save(content, sink if is_tensor and content.nbytes > _BATCH_BYTES else small)  # type: ignore[arg-type]
                note: dict[str, Any] = {"paths": [self.paths[name] for name in (piece.name, *piece.aliases)]}
                note["place"] = start, sink.num_bytes + small.tell() - start
                if is_tensor:
                    note["dtype"] = str(content.dtype).removeprefix("torch.")
                    note["part"] = piece.shape, piece.offset, tuple(content.shape)
                notes.append(note)
        sink.write(small.getvalue())
        _note_of(sink.path).write_text(json.dumps(notes), encoding="utf-8")
        return nonfinite

    def table(self, names: Collection[str]) -> DistributedTable:
        """Return the table of the state."""
        folder = self.name.rpartition("/")[0]
        parts = sorted({name for name in names if name.rpartition("/")[0] == folder})
        return DistributedTable(f"{folder}/{METADATA_NAME}", parts)


@dataclass(frozen=True)
class DistributedTable(PendingFile):
    """The table of a state: the locations of all of its parts.

    Attributes:
        name: File name, with the folder of the state.
        parts: The files of the ranks. Their notes, which may be too large for the ranks' store, are next to them.
    """

    name: str
    parts: Sequence[str]

    def write(self, sink: FileSink) -> str:
        """Write the table, and remove the notes."""
        kinds: dict[Keys, tuple[torch.dtype | None, tuple[int, ...]]] = {}
        chunks: dict[Keys, list[Chunk]] = {}
        for part in self.parts:
            path = sink.path.with_name(part.rpartition("/")[2])
            for note in json.loads(_note_of(path).read_text(encoding="utf-8")):
                shape, offset, sizes = map(tuple, note.get("part", ((), (), ())))
                start, num_bytes = note["place"]
                chunk = Chunk(path.name, start, num_bytes, offset, sizes)
                for keys in map(tuple, note["paths"]):
                    if "dtype" in note:
                        kinds[keys] = getattr(torch, note["dtype"]), shape
                        chunks.setdefault(keys, []).append(chunk)
                    else:
                        kinds[keys], chunks[keys] = (None, ()), [chunk]
            _note_of(path).unlink()
        sink.write(encode_metadata(Entry(keys, tuple(chunks[keys]), *kind) for keys, kind in kinds.items()))
        return ""


def _note_of(part: Path) -> Path:
    """Return the file with the note of a part."""
    return part.with_name(f"{part.name}.note")


def part_name(folder: str, rank: int) -> str:
    """Return the name of a rank's file."""
    return f"{folder}/__{rank}_0.distcp"


def part_of_rank(
    folder: str, pieces: Iterable[Piece], paths: Mapping[str, Keys], *, rank: int
) -> DistributedPart:
    """Return the file of this rank in the folder of a state, with the ``pieces`` that it writes."""
    written = [piece for piece in pieces if piece.is_writer and not _is_nothing(piece)]
    return DistributedPart(part_name(folder, rank), written, paths)


def _is_nothing(piece: Piece) -> bool:
    """Whether it is the empty local part of a tensor on other ranks; an empty tensor is written, for the load."""
    return isinstance(piece.local, torch.Tensor) and piece.local.numel() == 0 and not piece.is_full


@contextmanager
def _without_crc32() -> Iterator[None]:
    """Disable the CRC-32 of `torch.save`, which takes most of its time: `FileSink` has a better digest.

    Before torch 2.13 the setting is shared by all threads: a thread that finds it disabled must not enable it for the
    others at the end. Delete that when we require torch 2.13.
    """
    is_set = get_crc32_options()
    if is_set:
        set_crc32_options(False)
    try:
        yield
    finally:
        if is_set:
            set_crc32_options(True)
