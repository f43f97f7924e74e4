"""The files that a rank writes to a checkpoint, alone or with the others, and how weights are split into them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import torch

from accel_checkpoint.file_names import MANIFEST_NAME, is_trained_file, weight_format
from accel_checkpoint.files import is_plain_name
from accel_checkpoint.formats.deferred import DeferredTensor, deferred_in
from accel_checkpoint.formats.plain_data import check_plain
from accel_checkpoint.formats.safetensor_writing import (
    metadata_of,
    order_of_writing,
    second_names_of,
    write_safetensors,
)
from accel_checkpoint.manifest import FileEntry
from accel_checkpoint.saving.progress import Progress
from accel_checkpoint.saving.sink import FileSink
from accel_checkpoint.saving.snapshot import HostBuffers, compact_on_cpu, is_plain, map_tensors
from accel_ops.byte_sizes import convert_file_size_to_int
from accel_ops.shared_tensors import id_tensor_storage, id_tensor_view
from accel_state.errors import CheckpointError, ConfigError

NOTE_SUFFIX = ".note"
"""Of the file beside a file with the note that it leaves for rank 0, which may be too large for the ranks' store."""
MAX_WRITERS = 4
TORCH_SUFFIXES = (".bin", ".pt", ".pth", ".pkl")


class PendingFile(Protocol):
    """A file that has not been written to the checkpoint yet."""

    @property
    def name(self) -> str:
        """File name, relative to the checkpoint's folder."""
        ...

    def snapshot(self, buffers: HostBuffers) -> PendingFile:
        """Return a snapshot of the file, which further training does not change."""
        ...

    def deferred(self) -> list[DeferredTensor]:
        """Return the tensors that are fetched when the file is written, in that order."""
        ...

    def write(self, sink: FileSink) -> None:
        """Write the content."""
        ...


class MergedFile(Protocol):
    """A file that rank 0 writes last, from what all ranks noted in `FileSink.note` about theirs."""

    @property
    def name(self) -> str:
        """File name, relative to the checkpoint's folder."""
        ...

    def write(self, sink: FileSink, notes: Mapping[str, str]) -> None:
        """Write the content; ``notes`` are those of all files, by their names."""
        ...


@dataclass(frozen=True)
class TorchFile:
    """A `torch.save` file.

    Attributes:
        name: File name.
        content: What `torch.load` returns.
        must_be_plain: Reject content that could not be loaded without running code.
    """

    name: str
    content: Any
    must_be_plain: bool = True

    def __post_init__(self) -> None:
        if self.must_be_plain:
            check_plain(self.content, file_name=self.name)

    def snapshot(self, buffers: HostBuffers) -> Self:
        """Return the file with copies of its tensors."""
        copied = map_tensors(self.content, lambda path, tensor: buffers.copy((self.name, *path), tensor))
        return replace(self, content=copied)

    def deferred(self) -> list[DeferredTensor]:
        """Return the tensors that are fetched when the file is written, in that order."""
        return deferred_in(self.content)

    def write(self, sink: FileSink) -> None:
        """Write the content; deferred tensors are fetched before, and are in memory together."""
        content = map_tensors(self.content, compact_on_cpu)
        if is_trained_file(self.name):
            examine_tensors(content, sink)
        torch.save(content, sink)  # type: ignore[arg-type]


@dataclass(frozen=True)
class SafetensorsFile:
    """A safetensors file."""

    name: str
    tensors: Mapping[str, torch.Tensor]
    metadata: Mapping[str, str]

    @classmethod
    def of(cls, name: str, state: Mapping[str, Any]) -> Self:
        """Return the file for a state dict; tied weights are stored once."""
        second_names = second_names_of(state)
        tensors = {key: tensor for key, tensor in state.items() if key not in second_names}
        return cls(name, tensors, metadata_of(tensors, second_names))

    def snapshot(self, buffers: HostBuffers) -> Self:
        """Return the file with copies of its tensors."""
        copied = map_tensors(
            {name: self.tensors[name] for name in order_of_writing(self.tensors)},
            lambda path, tensor: buffers.copy((self.name, *path), tensor),
        )
        return replace(self, tensors=copied)

    def deferred(self) -> list[DeferredTensor]:
        """Return the tensors that are fetched when the file is written, in that order."""
        return deferred_in([self.tensors[name] for name in order_of_writing(self.tensors)])

    def write(self, sink: FileSink) -> None:
        """Write the content."""
        examine = sink.examine if is_trained_file(self.name) else None
        write_safetensors(sink, self.tensors, metadata=self.metadata, examine=examine)


@dataclass(frozen=True)
class JsonFile:
    """A JSON file."""

    name: str
    content: Any

    def snapshot(self, buffers: HostBuffers) -> Self:
        """Return the file itself, since training does not change it."""
        return self

    def deferred(self) -> list[DeferredTensor]:
        """Return the tensors that are fetched when the file is written, in that order."""
        return []

    def write(self, sink: FileSink) -> None:
        """Write the content."""
        sink.write(json.dumps(self.content, indent=2).encode() + b"\n")


def pending_file(name: str, content: Any) -> PendingFile:
    """Return a file in the format that the suffix of its name selects.

    Raises:
        ConfigError: If the suffix is unknown, or the name leads out of the folder or is the manifest's.
        CheckpointError: If the format cannot hold the content.
    """
    if not is_plain_name(name) or name == MANIFEST_NAME:
        raise ConfigError(f"`{name}` cannot be the name of a file in a checkpoint. Choose another.")
    if name.endswith(".safetensors"):
        return SafetensorsFile.of(name, content)
    if name.endswith(".json"):
        return JsonFile(name, content)
    if name.endswith(TORCH_SUFFIXES):
        return TorchFile(name, content)
    raise ConfigError(
        f"`{name}` does not end in a known suffix, which selects the file format. Use one of .safetensors, .json, "
        f"{', '.join(TORCH_SUFFIXES)}."
    )


def pending_weights(
    state: Mapping[str, Any],
    *,
    index: int,
    safe: bool,
    max_shard_size: int | str | None,
    must_be_plain: bool = True,
) -> list[PendingFile]:
    """Return the weight files of one model: a single file, or shards and their index.

    Args:
        state: State dict of the model.
        index: Index of the model.
        safe: Use safetensors instead of `torch.save`; tied weights are then stored once, under their first name.
        max_shard_size: Maximum size of one file; None writes a single file.
        must_be_plain: Reject content that could not be loaded without running code.

    Raises:
        CheckpointError: If a tensor is on the meta device, or the format cannot store it.
    """
    _reject_meta_tensors(state, index=index)
    names = weight_format(index, safe=safe)
    second_names = second_names_of(state) if safe else {}
    stored = {name: value for name, value in state.items() if name not in second_names}
    groups = list(groups_by_storage(stored))
    if safe:  # which stores each tensor separately
        groups = [((name,), tensor.nbytes) for name, tensor in stored.items()]
    shards = plan_shards(groups, max_shard_size=max_shard_size)

    def file(name: str, members: list[str]) -> PendingFile:
        content = {member: stored[member] for member in members}
        if safe:
            return SafetensorsFile(name, content, metadata_of(content, second_names))
        return TorchFile(name, content, must_be_plain)

    if len(shards) == 1:
        return [file(names.whole, shards[0])]
    files = {names.shard(number, num_shards=len(shards)): members for number, members in enumerate(shards, 1)}
    content = {
        "metadata": {"total_size": sum(size for _, size in groups)},
        "weight_map": {member: name for name, members in files.items() for member in members},
    }
    return [*(file(name, members) for name, members in files.items()), JsonFile(names.index, content)]


def write_files(
    files: Sequence[PendingFile],
    folder: Path,
    *,
    rank: int,
    place: int,
    num_threads: int,
    progress: Progress | None = None,
) -> list[FileEntry]:
    """Write the files to ``folder``, force them to disk, and return their manifest entries.

    Args:
        files: The files to write.
        folder: An existing folder.
        rank: This process.
        place: The file system that ``folder`` is on; see `FileEntry`.
        num_threads: How many files to write at a time.
        progress: Is advanced by the bytes written.
    """

    def write(file: PendingFile) -> FileEntry:
        sink = write_file(file, folder, progress=progress)
        if sink.note:
            (folder / f"{file.name}{NOTE_SUFFIX}").write_text(sink.note, encoding="utf-8")
        return sink.entry(file.name, rank=rank, place=place)

    if num_threads == 1 or len(files) < 2:
        return [write(file) for file in files]
    with ThreadPoolExecutor(min(num_threads, MAX_WRITERS), thread_name_prefix="accel-checkpoint") as pool:
        return list(pool.map(write, files))


def write_file(
    file: PendingFile, folder: Path, *, replace: bool = False, progress: Progress | None = None
) -> FileSink:
    """Write one file to ``folder`` and force it to disk; fails if the file exists, unless ``replace`` is set."""
    path = folder / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    if replace:
        path.unlink(missing_ok=True)
    with FileSink(path, progress=progress) as sink:
        file.write(sink)
    return sink


def examine_tensors(content: Any, sink: FileSink) -> None:
    """Look for values that are not finite in all tensors of nested containers."""

    def examined(path: tuple[Any, ...], tensor: torch.Tensor) -> torch.Tensor:
        sink.examine(".".join(map(str, path)), tensor)
        return tensor

    map_tensors(content, examined)


def _reject_meta_tensors(state: Mapping[str, Any], *, index: int) -> None:
    empty = [name for name, value in state.items() if isinstance(value, torch.Tensor) and value.is_meta]
    if empty:
        raise CheckpointError(
            f"`{empty[0]}` of model {index} cannot be saved: on the meta device a tensor has no values. "
            "Load the weights first, for example with `load_checkpoint_in_model`."
        )


T = TypeVar("T")


@dataclass(frozen=True)
class CollectiveFile:
    """One rank's share in such a file.

    Attributes:
        order: The tensors that all ranks fetch together, in the order in which the file is written.
        file: The file, on the rank that writes it; None on the others.
    """

    order: Sequence[DeferredTensor]
    file: PendingFile | None

    def snapshot(self, buffers: HostBuffers) -> PendingFile | None:
        """Fetch everything, and return the file in the memory of the rank that writes it. All ranks together."""
        return self._taking_part(lambda file: file.snapshot(buffers))

    def write(
        self, folder: Path, *, replace: bool = False, progress: Progress | None = None
    ) -> FileSink | None:
        """Write the file while it is fetched, and return its sink on the rank that writes. All ranks together."""
        return self._taking_part(lambda file: write_file(file, folder, replace=replace, progress=progress))

    def _taking_part(self, use: Callable[[PendingFile], T]) -> T | None:
        before = [tensor.num_fetched for tensor in self.order]
        try:
            return None if self.file is None else use(self.file)
        finally:
            # Also after an error, such as a full disk: the other ranks wait in these collectives.
            for tensor, count in zip(self.order, before, strict=True):
                if tensor.num_fetched == count:
                    tensor.fetch()


def plan_shards(
    groups: Iterable[tuple[Sequence[str], int]], *, max_shard_size: int | str | None
) -> list[list[str]]:
    """Return the names for each file, in the given order; a file is full when the next group does not fit.

    Args:
        groups: Names that must stay together because they share memory, with their size in bytes.
        max_shard_size: Bytes, or a string such as ``"5GB"``; None puts all into one file. A larger group gets its own.

    Returns:
        At least one list, which is empty if there is nothing to save.
    """
    limit = math.inf if max_shard_size is None else convert_file_size_to_int(max_shard_size)
    if limit == 0:
        raise ConfigError("`max_shard_size` must be larger than 0 bytes.")
    shards: list[list[str]] = [[]]
    filled = 0
    for names, size in groups:
        if filled + size > limit and shards[-1]:
            shards.append([])
            filled = 0
        shards[-1].extend(names)
        filled += size
    return shards


def groups_by_storage(state: Mapping[str, Any]) -> Iterator[tuple[Sequence[str], int]]:
    """Yield the names that share a storage together, in the order of their first name, with their size in bytes.

    Equal views count once, as `torch.save` stores them.
    """
    names: dict[object, list[str]] = {}
    sizes: dict[object, dict[object, int]] = {}
    for name, value in state.items():
        storage, view = _memory_of(name, value)
        names.setdefault(storage, []).append(name)
        sizes.setdefault(storage, {})[view] = _num_bytes(value)
    for storage, sharing in names.items():
        yield sharing, sum(sizes[storage].values())


def _memory_of(name: str, value: Any) -> tuple[object, object]:
    """Return what identifies the storage of a value, and its view of it."""
    if isinstance(value, DeferredTensor):
        return id(value), id(value)
    if isinstance(value, torch.Tensor) and is_plain(value):
        return id_tensor_storage(value), id_tensor_view(value)
    return name, name


def _num_bytes(value: Any) -> int:
    if isinstance(value, DeferredTensor):
        return value.nbytes
    # For a sparse tensor, the dense size: splitting into files needs only an upper bound.
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0
