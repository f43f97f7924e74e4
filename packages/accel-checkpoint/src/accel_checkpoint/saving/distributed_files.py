"""The files of a state that all ranks write together, as `torch.distributed.checkpoint` lays them out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.serialization import get_crc32_options, set_crc32_options

from accel_checkpoint.file_names import METADATA_NAME, PART_SUFFIX
from accel_checkpoint.formats.distributed import Chunk, Entry, encode_metadata
from accel_checkpoint.formats.plain_data import check_plain
from accel_checkpoint.pieces import Piece
from accel_checkpoint.saving.pending_files import PendingFile
from accel_checkpoint.saving.sink import FileSink
from accel_checkpoint.saving.snapshot import HostBuffers, compact_on_cpu, map_tensors

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class DistributedPart(PendingFile):
    """One rank's part of a state: each piece as a `torch.save` file of its own, one after the other.

    Attributes:
        name: File name, with the folder of the state.
        pieces: What this rank writes.
        paths: The keys that lead to each entry, by its name.
    """

    name: str
    pieces: Sequence[Piece]
    paths: Mapping[str, Path]

    def __post_init__(self) -> None:
        check_plain({piece.name: piece.local for piece in self.pieces}, file_name=self.name)

    def snapshot(self, buffers: HostBuffers) -> DistributedPart:
        """Return the file with copies of its tensors."""
        copies = buffers.snapshot([piece.local for piece in self.pieces])
        return replace(
            self,
            pieces=[replace(piece, local=local) for piece, local in zip(self.pieces, copies, strict=True)],
        )

    def write(self, sink: FileSink) -> None:
        """Write the pieces, and note where each lies."""
        notes = []
        for piece in self.pieces:
            start, content = sink.num_bytes, map_tensors(piece.local, compact_on_cpu)
            sink.examine({piece.name: content})
            with _without_crc32():
                torch.save(content, sink)  # type: ignore[arg-type]
            note: dict[str, Any] = {"paths": [self.paths[name] for name in (piece.name, *piece.aliases)]}
            note["place"] = start, sink.num_bytes - start
            if isinstance(content, torch.Tensor):
                note["dtype"] = str(content.dtype).removeprefix("torch.")
                note["part"] = piece.shape, piece.offset, tuple(content.shape)
            notes.append(note)
        sink.note = json.dumps(notes)


@dataclass(frozen=True)
class DistributedTable:
    """The table of a state, which rank 0 writes when it knows where all parts lie.

    Attributes:
        folder: The folder of the state.
    """

    folder: str

    @property
    def name(self) -> str:
        """File name, relative to the checkpoint's folder."""
        return f"{self.folder}/{METADATA_NAME}"

    def write(self, sink: FileSink, notes: Mapping[str, str]) -> None:
        """Write the table.

        Args:
            sink: Receives the bytes.
            notes: What each rank noted about its file, by the name of the file.
        """
        kinds: dict[Path, tuple[torch.dtype | None, tuple[int, ...]]] = {}
        chunks: dict[Path, list[Chunk]] = {}
        for path in sorted(notes):
            folder, _, file = path.rpartition("/")
            for note in json.loads(notes[path]) if folder == self.folder else ():
                shape, offset, sizes = map(tuple, note.get("part", ((), (), ())))
                start, num_bytes = note["place"]
                chunk = Chunk(file, start, num_bytes, offset, sizes)
                for keys in map(tuple, note["paths"]):
                    if "dtype" in note:
                        kinds[keys] = getattr(torch, note["dtype"]), shape
                        chunks.setdefault(keys, []).append(chunk)
                    else:
                        kinds[keys], chunks[keys] = (None, ()), [chunk]
        sink.write(encode_metadata(Entry(keys, tuple(chunks[keys]), *kind) for keys, kind in kinds.items()))


def part_name(folder: str, rank: int) -> str:
    """Return the name of a rank's file."""
    return f"{folder}/__{rank}_0{PART_SUFFIX}"


def part_of_rank(
    folder: str, pieces: Iterable[Piece], paths: Mapping[str, Path], *, rank: int
) -> DistributedPart:
    """Return the file of this rank.

    Args:
        folder: Name of the folder of the state.
        pieces: All pieces that this rank holds.
        paths: The keys that lead to each entry, by its name.
        rank: This process.
    """
    own = [piece for piece in pieces if piece.is_writer and not _is_nothing(piece)]
    return DistributedPart(part_name(folder, rank), own, paths)


def _is_nothing(piece: Piece) -> bool:
    """Whether it is the empty part of a tensor that others hold; an empty tensor is written, to be found again."""
    return isinstance(piece.local, torch.Tensor) and piece.local.numel() == 0 and not piece.is_whole


@contextmanager
def _without_crc32() -> Iterator[None]:
    """Let `torch.save` in this thread write no CRC-32, which takes most of its time: `FileSink` has a better digest.

    Before torch 2.13 the setting is that of all threads. Thus no thread restores what another one has set.
    """
    is_set = get_crc32_options()
    if is_set:
        set_crc32_options(False)
    try:
        yield
    finally:
        if is_set:
            set_crc32_options(True)
