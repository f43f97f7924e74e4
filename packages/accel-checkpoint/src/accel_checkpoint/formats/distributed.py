"""States in the format of `torch.distributed.checkpoint`: a table, and the parts of tensors that it places in files.

Read without running code, part by part, by any number of processes.
"""

from __future__ import annotations

import io
import math
import os
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Self
from uuid import uuid4

import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo  # tables of torch pickle it by this name
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from accel_checkpoint.file_names import METADATA_NAME
from accel_checkpoint.files import SavedFiles, is_plain_name, opened
from accel_checkpoint.formats.torch_files import DAMAGE, check_pickle, read_torch_file
from accel_state.errors import CheckpointError


class _Record:
    """Replaces a value of any class in a table. `__setstate__` also prevents `BUILD` from changing a class."""

    __slots__ = ("state",)

    def __new__(cls, *arguments: Any) -> Self:
        return object.__new__(cls)

    def __setstate__(self, state: Any) -> None:
        self.state = state


_NAMES = ("Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "BytesStorageMetadata",
          "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING")  # fmt: skip
_CLASSES: dict[str, Any] = {name: type(name, (_Record,), {"__slots__": ()}) for name in _NAMES}
_ALLOWED: dict[tuple[str, str], Any] = {
    **{(dcp.__name__, name): kind for name, kind in _CLASSES.items()},
    (_StorageInfo.__module__, _StorageInfo.__name__): _Record,
    ("torch", "Size"): type("Size", (_Record,), {"__new__": lambda cls, sizes=(): sizes}),
    ("torch.serialization", "_get_layout"): _Record,
    (
        "builtins",
        "getattr",
    ): _Record,  # Python 3.11.0 to 3.11.3 saves members of enumerations by it
    # The folder of the save, which is unused here.
    **{
        (module, kind): _Record
        for module in ("pathlib", "pathlib._local")
        for kind in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")
    },
}


@dataclass(frozen=True, slots=True)
class Chunk:
    """The location of one part of a tensor, or of another value.

    Attributes:
        file: The file, relative to the folder.
        start: Its first byte there.
        num_bytes: Its size there.
        offset: Start of the part in the tensor, along each dimension.
        sizes: Shape of the part.
    """

    file: str
    start: int
    num_bytes: int
    offset: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a state: a tensor with its parts, or another value in one chunk.

    Attributes:
        path: Its keys, from the top of the nested state.
        chunks: Its parts; parts without elements are omitted.
        dtype: None if it is not a tensor.
        shape: Shape of the full tensor.
    """

    path: tuple[str | int, ...]
    chunks: tuple[Chunk, ...]
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """Its name in the table."""
        return ".".join(map(str, self.path))


# Why: docs/decisions/0012-sharded-checkpoints-are-written-without-dcp.md
def encode_metadata(entries: Iterable[Entry]) -> bytes:
    """Return the content of the table, as `torch.distributed.checkpoint.load` reads it."""
    state: dict[str, Any] = {}
    planner: dict[str, tuple[str | int, ...]] = {}
    storage: dict[MetadataIndex, Any] = {}
    for entry in entries:
        planner[entry.key] = entry.path
        for chunk in entry.chunks:
            offset = None if entry.dtype is None else torch.Size(chunk.offset)
            storage[MetadataIndex(entry.key, offset)] = _StorageInfo(chunk.file, chunk.start, chunk.num_bytes)
        if entry.dtype is None:
            state[entry.key] = dcp.BytesStorageMetadata()
        else:
            state[entry.key] = dcp.TensorStorageMetadata(
                properties=dcp.TensorProperties(dtype=entry.dtype),
                size=torch.Size(entry.shape),
                chunks=[
                    dcp.ChunkStorageMetadata(torch.Size(chunk.offset), torch.Size(chunk.sizes))
                    for chunk in entry.chunks
                ],
            )
    return pickle.dumps(
        Metadata(
            state,
            planner_data=planner,
            storage_data=storage,
            storage_meta=dcp.StorageMeta(save_id=str(uuid4())),
        )
    )


def read_metadata(path: Path) -> dict[str, Entry]:
    """Return the entries of a table by their keys.

    The table is a pickle. It may name only the classes of a table; any other class could run code.

    Raises:
        CheckpointError: If it names another class, is damaged, or is inconsistent.
    """
    try:
        check_pickle(pickled := path.read_bytes())
        entries = dict(_entries(_TableUnpickler(io.BytesIO(pickled), path).load()))
        for file in {chunk.file for entry in entries.values() for chunk in entry.chunks}:
            if not is_plain_name(file):
                raise ValueError(f"it names the file `{file}`")
        return entries
    except DAMAGE as error:
        raise CheckpointError(
            f"`{path}` is not a readable table of a sharded checkpoint: {str(error) or type(error).__name__}. "
            "Copy or save it again."
        ) from error


class _TableUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, path: Path) -> None:
        super().__init__(file)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        allowed = _ALLOWED.get((module, name))
        if allowed is None and module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            allowed = getattr(torch, name)
        if allowed is None:
            raise CheckpointError(
                f"`{self._path}` is not loaded: it names `{module}.{name}`, which is not part of a table of "
                "`torch.distributed.checkpoint` and could run code. Get the checkpoint from a source that you trust."
            )
        return allowed


def _entries(content: Any) -> Iterable[tuple[str, Entry]]:
    if not isinstance(content, _CLASSES["Metadata"]):
        raise ValueError(f"it contains a {type(content).__name__}")
    paths: Mapping[str, Any] = content.state.get("planner_data") or {}
    locations = {
        (index.state["fqn"], index.state.get("offset")): location.state
        for index, location in (content.state["storage_data"] or {}).items()
    }
    described: Any  # unpickled, so it may be anything
    key: Any
    for key, described in content.state["state_dict_metadata"].items():
        path = tuple(paths.get(key, (key,)))
        if not isinstance(key, str) or not all(type(part) in (str, int) for part in path):
            raise ValueError(f"{key!r} is not the name of an entry")
        if isinstance(described, _CLASSES["BytesStorageMetadata"]):
            yield key, Entry(path, (_chunk(locations[key, None], key, (), ()),))
            continue
        shape, dtype = tuple(described.state["size"]), described.state["properties"].state[0]
        if not isinstance(dtype, torch.dtype) or not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"`{key}` has no valid shape or type")
        chunks = []
        for part in described.state["chunks"]:
            offset, sizes = tuple(part.state["offsets"]), tuple(part.state["sizes"])
            _check_inside(key, shape, offset, sizes)
            if math.prod(sizes):
                chunks.append(_chunk(locations[key, offset], key, offset, sizes))
        yield key, Entry(path, tuple(chunks), dtype, shape)


def _check_inside(key: str, shape: tuple[int, ...], offset: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    if not len(shape) == len(offset) == len(sizes):
        raise ValueError(f"a part of `{key}` has another number of dimensions")
    if any(
        start < 0 or size < 0 or start + size > end
        for start, size, end in zip(offset, sizes, shape, strict=True)
    ):
        raise ValueError(f"a part of `{key}` is outside of it")


def _chunk(place: Any, key: str, offset: tuple[int, ...], sizes: tuple[int, ...]) -> Chunk:
    if place.get("transform_descriptors"):
        raise ValueError(f"`{key}` is stored in a changed form (`{place['transform_descriptors']}`)")
    file, start, length = place["relative_path"], place["offset"], place["length"]
    if not isinstance(file, str):
        raise ValueError(f"it names the file `{file}`")
    if not (type(start) is int and type(length) is int and min(start, length) >= 0):
        raise ValueError(f"`{key}` has no valid location")
    return Chunk(file, start, length, offset, sizes)


class Destination(NamedTuple):
    """Where a part of a saved tensor is read to: ``part``, of any dtype and device, is at ``offset`` of ``entry``."""

    part: torch.Tensor
    entry: Entry
    offset: tuple[int, ...]


_Wanted = tuple[torch.Tensor | None, tuple[slice, ...], Chunk, Entry]
"""A part of a tensor to fill, or None to return the value; where it is in the chunk; the chunk; and its entry."""


class DistributedState:
    """One state in a folder of parts and a table; nothing is read before it is requested.

    Args:
        files: The files of the checkpoint.
        name: The folder of the state in it; empty if it is the same folder.

    Raises:
        CheckpointError: If there is no readable table.
    """

    def __init__(self, files: SavedFiles, name: str) -> None:
        self._files, self._prefix = files, f"{name}/" if name else ""
        self.entries = read_metadata(files.path(self._prefix + METADATA_NAME))
        self._opened = set[str]()

    def below(self, *path: str | int) -> list[tuple[tuple[str | int, ...], Entry]]:
        """Return the entries whose path starts with ``path``, with the rest of it."""
        found = [entry for entry in self.entries.values() if entry.path[: len(path)] == path]
        return [(entry.path[len(path) :], entry) for entry in found]

    def value(self, entry: Entry) -> Any:
        """Return a full tensor on the CPU, or another value."""
        return self.values([entry])[0]

    def values(self, entries: Sequence[Entry]) -> list[Any]:
        """Return full tensors on the CPU, and other values, in the order of ``entries``."""
        tensors = {
            entry.key: torch.empty(entry.shape, dtype=entry.dtype, device="cpu")
            for entry in entries
            if entry.dtype is not None
        }
        self.read(
            Destination(tensors[entry.key], entry, (0,) * len(entry.shape))
            for entry in entries
            if entry.key in tensors
        )
        others = self._read(
            [(None, (), entry.chunks[0], entry) for entry in entries if entry.key not in tensors]
        )
        return [tensors[entry.key] if entry.key in tensors else others[entry.key] for entry in entries]

    def open(self, destinations: Iterable[Destination]) -> None:
        """Request the files that are read into them, which compares them with the manifest; see `SavedFiles`."""
        for part, entry, offset in destinations:
            for chunk in entry.chunks:
                if chunk.file not in self._opened and (
                    entry.dtype is None or _common(offset, tuple(part.shape), chunk) is not None
                ):
                    self._opened.add(chunk.file)
                    self._files.path(self._prefix + chunk.file)

    @torch.no_grad()
    def read(self, destinations: Iterable[Destination]) -> None:
        """Fill each part with the saved values at its place, one file after the other.

        Raises:
            CheckpointError: If a file is damaged, or the saved parts do not cover a destination.
        """
        wanted: list[_Wanted] = []
        for part, entry, offset in destinations:
            num_values = 0
            for chunk in entry.chunks:
                common = _common(offset, tuple(part.shape), chunk)
                if common is not None:
                    target = part[common[0]] if common[0] else part
                    wanted.append((target, common[1], chunk, entry))
                    num_values += target.numel()
            if num_values != part.numel():
                raise CheckpointError(
                    f"The parts of `{entry.key}` in `{self._files.folder / self._prefix}` are incomplete: "
                    f"{num_values} of {part.numel()} values exist. Copy or save the checkpoint again."
                )
        self._read(wanted)

    def _read(self, wanted: Sequence[_Wanted]) -> dict[str, Any]:
        """Fill the targets, one file after the other, and return by key what has none."""
        others: dict[str, Any] = {}
        by_place = sorted(wanted, key=lambda one: (one[2].file, one[2].start))
        for name, of_file in groupby(by_place, key=lambda one: one[2].file):
            path = self._files.path(self._prefix + name)
            with opened(path) as file:
                num_bytes = os.fstat(file.fileno()).st_size
                for target, there, chunk, entry in of_file:
                    if chunk.start + chunk.num_bytes > num_bytes:
                        raise CheckpointError(
                            f"`{path}` ends before the part of `{entry.key}`. Copy or save it again."
                        )
                    file.seek(chunk.start)
                    content = read_torch_file(io.BytesIO(file.read(chunk.num_bytes)), path=path)
                    if target is None:
                        others[entry.key] = content
                        continue
                    is_tensor = isinstance(content, torch.Tensor)
                    if not is_tensor or (tuple(content.shape), content.dtype) != (chunk.sizes, entry.dtype):
                        raise CheckpointError(
                            f"`{path}` does not contain the part of `{entry.key}` that the table lists. "
                            "Copy or save the checkpoint again."
                        )
                    target.copy_(content[there] if there else content)
        return others


def _common(
    offset: tuple[int, ...], sizes: tuple[int, ...], chunk: Chunk
) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """Return the overlap of a requested and a saved part, as slices of each; None if there is none."""
    starts = [max(start, other) for start, other in zip(offset, chunk.offset, strict=True)]
    ends = [
        min(start + size, other + length)
        for start, size, other, length in zip(offset, sizes, chunk.offset, chunk.sizes, strict=True)
    ]
    if math.prod(max(0, end - start) for start, end in zip(starts, ends, strict=True)) == 0:
        return None
    return tuple(
        tuple(
            slice(start - origin, end - origin)
            for start, end, origin in zip(starts, ends, origins, strict=True)
        )
        for origins in (offset, chunk.offset)
    )  # type: ignore[return-value]
