"""States in the format of `torch.distributed.checkpoint`: a table, and the parts of tensors that it places in files.

Read without running code, part by part, by any number of processes.
"""

from __future__ import annotations

import io
import math
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from accel_checkpoint.file_names import METADATA_NAME
from accel_checkpoint.files import SavedFiles, is_plain_name, opened
from accel_checkpoint.formats.torch_files import DAMAGE, check_pickle, read_torch_file
from accel_state.errors import CheckpointError


class _Record:
    """Stands for a value of any class in a table; on a class itself, too, `__setstate__` keeps `BUILD` from changes."""

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
    ("builtins", "getattr"): _Record,  # by which Python 3.11.0 to 3.11.3 saves a member of an enumeration
    # The folder that was saved to, which nothing here uses.
    **{
        (module, kind): _Record
        for module in ("pathlib", "pathlib._local")
        for kind in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")
    },
}


@dataclass(frozen=True, slots=True)
class Chunk:
    """Where one part of a tensor, or another value, lies.

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
        path: The keys that lead to it from the top of the nested state.
        chunks: Its parts; parts without elements are left out.
        dtype: Number format; None if it is no tensor.
        shape: Shape of the whole tensor.
    """

    path: tuple[str | int, ...]
    chunks: tuple[Chunk, ...]
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """Its name in the table."""
        return ".".join(map(str, self.path))


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
                    dcp.ChunkStorageMetadata(torch.Size(one.offset), torch.Size(one.sizes))
                    for one in entry.chunks
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

    The table is a pickle. Of all classes that it may name, only those that a table consists of are taken.

    Raises:
        CheckpointError: If it names another class, is damaged, or says what cannot be.
    """
    try:
        check_pickle(pickled := path.read_bytes())
        return dict(_entries(_TableUnpickler(io.BytesIO(pickled), path).load()))
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
        found = _ALLOWED.get((module, name))
        if found is None and module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            found = getattr(torch, name)
        if found is None:
            raise CheckpointError(
                f"`{self._path}` is not loaded: it names `{module}.{name}`, which is no part of a table of "
                "`torch.distributed.checkpoint` and could run code. Get the checkpoint from a source that you trust."
            )
        return found


def _entries(content: Any) -> Iterable[tuple[str, Entry]]:
    if not isinstance(content, _CLASSES["Metadata"]):
        raise ValueError(f"it holds a {type(content).__name__}")
    paths: Mapping[str, Any] = content.state.get("planner_data") or {}
    places = {
        (index.state["fqn"], index.state.get("offset")): place.state
        for index, place in (content.state["storage_data"] or {}).items()
    }
    described: Any  # unpickled, so it may be anything
    key: Any
    for key, described in content.state["state_dict_metadata"].items():
        path = tuple(paths.get(key, (key,)))
        if not isinstance(key, str) or not all(type(part) in (str, int) for part in path):
            raise ValueError(f"{key!r} is no name of an entry")
        if isinstance(described, _CLASSES["BytesStorageMetadata"]):
            yield key, Entry(path, (_chunk(places[key, None], key, (), ()),))
            continue
        shape, dtype = tuple(described.state["size"]), described.state["properties"].state[0]
        if not isinstance(dtype, torch.dtype) or not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"`{key}` has no valid shape or type")
        chunks = []
        for part in described.state["chunks"]:
            offset, sizes = tuple(part.state["offsets"]), tuple(part.state["sizes"])
            _check_inside(key, shape, offset, sizes)
            if math.prod(sizes):
                chunks.append(_chunk(places[key, offset], key, offset, sizes))
        yield key, Entry(path, tuple(chunks), dtype, shape)


def _check_inside(key: str, shape: tuple[int, ...], offset: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    if not len(shape) == len(offset) == len(sizes):
        raise ValueError(f"a part of `{key}` has another number of dimensions")
    if any(
        start < 0 or size < 0 or start + size > end
        for start, size, end in zip(offset, sizes, shape, strict=True)
    ):
        raise ValueError(f"a part of `{key}` does not lie inside it")


def _chunk(place: Any, key: str, offset: tuple[int, ...], sizes: tuple[int, ...]) -> Chunk:
    if place.get("transform_descriptors"):
        raise ValueError(f"`{key}` is stored in a changed form (`{place['transform_descriptors']}`)")
    file, start, length = place["relative_path"], place["offset"], place["length"]
    if not is_plain_name(file):
        raise ValueError(f"it names the file `{file}`")
    if not (type(start) is int and type(length) is int and min(start, length) >= 0):
        raise ValueError(f"`{key}` has no valid place")
    return Chunk(file, start, length, offset, sizes)


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
        tensor = torch.empty(entry.shape, dtype=entry.dtype, device="cpu")
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
        with opened(path) as file:
            if chunk.start + chunk.num_bytes > os.fstat(file.fileno()).st_size:
                raise CheckpointError(
                    f"`{path}` ends before the part of `{entry.key}`. Copy or save it again."
                )
            file.seek(chunk.start)
            content = file.read(chunk.num_bytes)
        return read_torch_file(io.BytesIO(content), path=path)


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
