"""Weight files of a folder, read by the names of tensors, in safetensors or `torch.save` format.

The header of a safetensors file has the byte range of each tensor, so single tensors, or rows of them, are read or
mapped into memory.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from accel_checkpoint.file_names import PICKLED, SAFETENSORS, weight_format
from accel_checkpoint.files import SavedFiles, is_plain_name, opened, read_json
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_state.errors import CheckpointError

DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I16": torch.int16,
    "U32": torch.uint32, "I32": torch.int32, "U64": torch.uint64, "I64": torch.int64, "F16": torch.float16,
    "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}  # fmt: skip
_LARGEST_HEADER = 100_000_000  # the limit of safetensors
_BUFFER_BYTES = 16 << 20
"""Largest number of bytes read at a time if values are converted or copied to another device."""
_PREFERRED = (SAFETENSORS.whole, SAFETENSORS.index, PICKLED.whole, PICKLED.index)


class ByteRange(NamedTuple):
    """The location of one tensor; ``start`` is relative to the start of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class SafetensorsLayout:
    """The locations of the tensors in a file.

    Attributes:
        path: The file.
        ranges: The byte range of each tensor, by its stored name and by its other names.
        second_names: The stored name of a tied weight, by each other name.
    """

    path: Path
    ranges: Mapping[str, ByteRange]
    second_names: Mapping[str, str]


def read_layout(path: Path) -> SafetensorsLayout:
    """Return the layout of a file; reads only its header.

    Raises:
        CheckpointError: If it is not a safetensors file, or its header contradicts its size.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_LARGEST_HEADER, size - 8):
            raise _unreadable(path, "its header does not fit into it")
        encoded = file.read(length)
    try:
        header = json.loads(encoded, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, f"its header is not valid JSON ({error})") from error
    if not isinstance(header, dict):
        raise _unreadable(path, "its header is not a table")
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _unreadable(path, "its metadata is not a table of strings")
    ranges = {name: _range(path, name, entry, 8 + length, size) for name, entry in header.items()}
    spans = sorted((span.start, span.start + span.num_bytes) for span in ranges.values() if span.num_bytes)
    if any(end > start for (_, end), (start, _) in pairwise(spans)):
        raise _unreadable(path, "its tensors overlap")
    if metadata.get("format") == "pt":  # the framework, not the parameter `pt`
        del metadata["format"]
    second = {name: kept for name, kept in metadata.items() if kept in ranges and name not in ranges}
    return SafetensorsLayout(path, ranges | {name: ranges[kept] for name, kept in second.items()}, second)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(table := dict(pairs)) < len(pairs):
        raise ValueError("a key occurs twice")
    return table


def _range(path: Path, name: str, entry: Any, base: int, size: int) -> ByteRange:
    if isinstance(entry, dict) and entry.get("dtype") in ("F4", "F6_E2M3", "F6_E3M2"):
        raise CheckpointError(
            f"`{name}` in `{path}` has the dtype `{entry['dtype']}`, below 8 bits, which is not supported. "
            "Convert the file to another dtype."
        )
    try:
        shape, (start, end), dtype = entry["shape"], entry["data_offsets"], DTYPES[entry["dtype"]]
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(path, f"the entry of `{name}` is invalid ({error})") from error
    if not isinstance(shape, list) or not all(type(number) is int for number in (*shape, start, end)):
        raise _unreadable(path, f"`{name}` has a shape or an offset that is not an integer")
    num_bytes = math.prod(shape) * dtype.itemsize
    if min([start, *shape]) < 0 or max([0, *shape]) >= 2**63 or base + end > size or end - start != num_bytes:
        raise _unreadable(path, f"`{name}` is outside of it")
    return ByteRange(dtype, tuple(shape), base + start, num_bytes)


def _unreadable(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"`{path}` is not a readable safetensors file: {why}. It may be truncated; copy or save it again."
    )


class MappedFile:
    """A memory-mapped file; tensors are views, read from disk on access and copied on write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        num_bytes = path.stat().st_size
        self._storage: Any = torch.UntypedStorage.from_file(str(path), shared=False, nbytes=num_bytes)

    def tensor(self, place: ByteRange) -> torch.Tensor:
        """Return a CPU tensor of the stored shape: a view of the mapped bytes, or a copy if they are not aligned."""
        if place.start % place.dtype.itemsize:
            empty: Any = torch.empty(0, dtype=torch.uint8, device="cpu")
            raw: torch.Tensor = empty.set_(self._storage, place.start, (place.num_bytes,), (1,))
            return raw.clone().view(place.dtype).reshape(place.shape)
        empty = torch.empty(0, dtype=place.dtype, device="cpu")
        view: torch.Tensor = empty.set_(self._storage, place.start // place.dtype.itemsize, place.shape)
        return view

    def read_ahead(self, place: ByteRange) -> None:
        """Start to read the bytes of a tensor from disk into memory, if the system supports it."""
        if hasattr(os, "posix_fadvise"):
            with self.path.open("rb", buffering=0) as file:
                if not _is_cached(file.fileno(), place):
                    os.posix_fadvise(file.fileno(), place.start, place.num_bytes, os.POSIX_FADV_WILLNEED)

    def __deepcopy__(self, memo: dict[int, Any]) -> MappedFile:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedFile, (self.path,)


def _is_cached(descriptor: int, place: ByteRange) -> bool:
    """Whether the first, middle and last bytes of a tensor are in memory; advice would check all pages."""
    if not hasattr(os, "RWF_NOWAIT"):  # Linux only
        return False
    try:
        for position in (0, place.num_bytes // 2, place.num_bytes - 1):
            os.preadv(descriptor, [bytearray(1)], place.start + position, os.RWF_NOWAIT)
    except OSError:  # they are not, or the file system does not report it
        return False
    return True


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One weight file.

    ``names`` are the names that the index lists for it; ``None``, without an index, means all.
    """

    path: Path
    names: frozenset[str] | None = None

    def listed(self, stored: Collection[str], second_names: Collection[str] = ()) -> Collection[str]:
        """Return the names in the file that the index lists for it, and second names; without an index, all.

        Raises:
            CheckpointError: If it lacks one.
        """
        if self.names is None:
            return stored
        if missing := sorted(self.names.difference(stored)):
            raise CheckpointError(
                f"`{self.path}` lacks {', '.join(f'`{name}`' for name in missing[:5])}, which its index lists. "
                "Files of two different saves may have been mixed. Copy the checkpoint again."
            )
        return [name for name in stored if name in self.names or name in second_names]


def read_weights(path: Path) -> dict[str, Any]:
    """Return the state dict in a weight file, with tensors mapped into memory if the file allows it.

    Copy tensors before changing them, or before the file is truncated.

    Raises:
        CheckpointError: If the file is damaged, or contains anything else.
    """
    if path.suffix == ".safetensors":
        layout, mapped = read_layout(path), MappedFile(path)
        return {name: mapped.tensor(place) for name, place in layout.ranges.items()}
    # Why: docs/decisions/0005-loading-copies-all-of-a-checkpoint.md
    content = read_torch_file(path, mmap=True, archives_only=False)
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"`{path}` contains a {type(content).__name__}, not a state dict. Name a file of weights."
        )
    return dict(content)


def checkpoint_files(checkpoint: str | os.PathLike[str]) -> list[CheckpointFile]:
    """Return the files of a checkpoint, ordered by their first mention in its index.

    Args:
        checkpoint: A weight file, an index (``.json``), or a folder with one of them. In a folder,
            safetensors are preferred to ``.bin``, and a single file to an index.

    Raises:
        CheckpointError: If there is no checkpoint, there are several indexes with unknown names, a file that the
            index names is missing, or the index names a file outside its folder.
    """
    path = Path(checkpoint)
    if path.is_dir():
        path = _main_file(path)
    if not path.is_file():
        raise CheckpointError(f"There is no checkpoint at `{path}`. Check the path.")
    return _files_of_index(path) if path.suffix == ".json" else [CheckpointFile(path)]


def _main_file(folder: Path) -> Path:
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    for name in _PREFERRED:
        if name in names:
            return folder / name
    candidates = [name for name in names if name.endswith(".index.json") or name == "index.json"]
    if not candidates:
        # A file with another name, such as `second.safetensors`, counts if it is the only one.
        candidates = [name for name in names if name.endswith((".safetensors", ".bin"))]
    shards = [name for name in candidates if SAFETENSORS.is_shard(name) or PICKLED.is_shard(name)]
    if shards:
        raise CheckpointError(
            f"`{folder}` has shards (`{shards[0]}` …) without their index, which is written last: "
            "the save or the copy was interrupted. Save or copy it again."
        )
    if len(candidates) > 1:
        raise CheckpointError(
            f"`{folder}` has several checkpoints: {', '.join(candidates)}. Name one of these files."
        )
    if not candidates:
        raise CheckpointError(
            f"`{folder}` has no checkpoint: none of {', '.join(_PREFERRED)}, no other index or weight file. "
            "Name the folder or the file that holds the weights."
        )
    return folder / candidates[0]


def _files_of_index(index: Path) -> list[CheckpointFile]:
    members: dict[str, set[str]] = {}
    for name, file_name in _weight_map(index).items():
        members.setdefault(_inside(index, file_name), set()).add(name)
    missing = [file_name for file_name in members if not (index.parent / file_name).is_file()]
    if missing:
        raise CheckpointError(
            f"`{index}` names files that are not next to it: {', '.join(missing)}. Copy them there."
        )
    return [CheckpointFile(index.parent / file, frozenset(names)) for file, names in members.items()]


def _weight_map(index: Path) -> Mapping[str, Any]:
    content = read_json(index)
    weight_map = content.get("weight_map", content) if isinstance(content, dict) else content
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"The index `{index}` must map names of weights to names of files.")
    return weight_map


def _inside(index: Path, file_name: Any) -> str:
    """Return ``file_name`` if it names a file in the folder of ``index`` on every operating system."""
    if not is_plain_name(file_name) or "/" in file_name:
        raise CheckpointError(
            f"The index `{index}` names the file `{file_name}`. Only plain names of files next to it are read. "
            "Get the checkpoint from a source that you trust."
        )
    return str(file_name)


def read_model(files: SavedFiles, index: int) -> dict[str, Any]:
    """Return the state dict of a model in a checkpoint, mapped: from safetensors or else `.bin`, one file or shards.

    Copy tensors before the files are removed.

    Raises:
        CheckpointError: If there are no files, one is damaged, or an index names anything but a regular file there.
    """
    for names in (weight_format(index, safe=True), weight_format(index, safe=False)):
        for name in (names.whole, names.index):
            if name in files.names:
                state: dict[str, Any] = {}
                for file in checkpoint_files(files.path(name)):
                    content = read_weights(files.path(file.path.name))
                    state |= {weight: content[weight] for weight in file.listed(content)}
                return state
    raise CheckpointError(
        f"`{weight_format(index, safe=True).whole}` is missing in the checkpoint `{files.folder}`. "
        "Load another checkpoint, or copy this one again with all its files."
    )


class WeightRows:
    """The tensors of safetensors files by name; only the headers of the files are read at first.

    Args:
        checkpoint: A safetensors file, an index of several (``.json``), or a folder with one of them.

    Raises:
        CheckpointError: If there are none, one is damaged, or one lacks what the index lists for it.
    """

    def __init__(self, checkpoint: str | os.PathLike[str]) -> None:
        self._places: dict[str, tuple[Path, ByteRange]] = {}
        second_names: dict[str, str] = {}
        for file in checkpoint_files(checkpoint):
            if file.path.suffix != ".safetensors":
                raise CheckpointError(
                    f"`{file.path}` is not a safetensors file, and parts of tensors can be read from these only. "
                    "Load all of it and save it with `safe_serialization=True`."
                )
            layout = read_layout(file.path)
            stored = [name for name in layout.ranges if name not in layout.second_names]
            names = stored if file.names is None else file.listed(layout.ranges)
            self._places |= {name: (file.path, layout.ranges[name]) for name in names}
            second_names |= layout.second_names
        self.second_names: Mapping[str, str] = {
            name: stored
            for name, stored in second_names.items()
            if stored in self._places and name not in self._places
        }
        """The stored name of a tied weight, by each other name."""

    def __iter__(self) -> Iterator[str]:
        """Yield the stored names."""
        return iter(self._places)

    def __contains__(self, name: object) -> bool:
        """Whether there is a tensor of this stored or second name."""
        return name in self._places or name in self.second_names

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the full tensor."""
        return self._place(name)[1].shape

    @torch.no_grad()
    def read_into(self, part: torch.Tensor, name: str, *, first_row: int = 0) -> None:
        """Fill ``part`` with consecutive rows of a tensor, converted to its dtype and on its device.

        Args:
            part: A contiguous tensor on any device; its shape differs from the tensor's only in the number of rows.
            name: The tensor.
            first_row: The first row of ``part``.

        Raises:
            CheckpointError: If the file has become shorter.
        """
        path, place = self._place(name)
        start = place.start
        if first_row:
            start += first_row * (place.num_bytes // place.shape[0])
        if part.is_cpu and part.dtype == place.dtype:
            _read_bytes(path, part, start)
            return
        values = part.view(-1)
        size = min(len(values), _BUFFER_BYTES // place.dtype.itemsize)
        buffer = torch.empty(size, dtype=place.dtype, device="cpu")
        for first in range(0, len(values), max(1, len(buffer))):
            filled = buffer[: len(values) - first]
            _read_bytes(path, filled, start + first * place.dtype.itemsize)
            values[first : first + len(filled)].copy_(filled)

    def _place(self, name: str) -> tuple[Path, ByteRange]:
        return self._places[self.second_names.get(name, name)]


def _read_bytes(path: Path, tensor: torch.Tensor, start: int) -> None:
    """Fill a contiguous tensor on the CPU with the bytes from ``start`` on."""
    memory = memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data)
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while len(memory):
            num_bytes = file.readinto(memory)
            if not num_bytes:
                raise CheckpointError(f"`{path}` ends too early. Copy or save it again.")
            memory = memory[num_bytes:]
