"""The files that a rank writes to a checkpoint, alone or with the others, and how weights are split into them."""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

import torch

from accel_checkpoint.file_names import MANIFEST_NAME, is_trained_file, weight_format
from accel_checkpoint.files import is_plain_name
from accel_checkpoint.formats.deferred import DeferredTensor, fetching_all, second_names_in
from accel_checkpoint.formats.plain_data import check_plain
from accel_checkpoint.formats.safetensor_writing import (
    metadata_of,
    order_of_writing,
    second_names_of,
    write_safetensors,
)
from accel_checkpoint.saving.sink import Advance, FileSink
from accel_checkpoint.saving.snapshot import (
    HostBuffers,
    compact_on_cpu,
    deferred_in,
    map_tensors,
    sharable_in,
)
from accel_ops.byte_sizes import convert_file_size_to_int
from accel_state.errors import CheckpointError, ConfigError

NOTE_SUFFIX = ".note"
"""Of the file beside a file with the note that it leaves for rank 0, which may be too large for the ranks' store."""
MAX_WRITERS = 4
TORCH_SUFFIXES = (".bin", ".pt", ".pth", ".pkl")


class PendingFile:
    """A file that has not been written to the checkpoint yet."""

    name: str
    """File name, relative to the checkpoint's folder."""

    def snapshot(self, buffers: HostBuffers) -> PendingFile:
        """Return a snapshot of the file, which further training does not change."""
        return self

    def deferred(self) -> list[DeferredTensor]:
        """Return the tensors that are fetched when the file is written, in that order."""
        return []

    @abstractmethod
    def write(self, sink: FileSink) -> None:
        """Write the content."""


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
class CollectiveFile:
    """A file whose tensors all ranks fetch together, while one of them writes it.

    Attributes:
        order: The tensors, in the order in which they are written.
        file: The file, on the rank that writes it; None on the others.
    """

    order: Sequence[DeferredTensor]
    file: PendingFile | None

    def snapshot(self, buffers: HostBuffers) -> PendingFile | None:
        """Fetch everything, and return the file in the memory of the rank that writes it. All ranks together."""
        with fetching_all(self.order):
            return None if self.file is None else self.file.snapshot(buffers)

    def write(
        self, folder: Path, *, replace: bool = False, advance: Advance | None = None
    ) -> FileSink | None:
        """Write the file while it is fetched, and return its sink on the rank that writes. All ranks together."""
        with fetching_all(self.order):
            if self.file is None:
                return None
            return write_file(self.file, folder, replace=replace, advance=advance)


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one state.

    Attributes:
        own: Those that this rank writes.
        collective: Those that all ranks write together, in the same order on each.
        merged: Those that rank 0 writes when all ranks have written theirs.
    """

    own: Sequence[PendingFile] = ()
    collective: Sequence[CollectiveFile] = ()
    merged: Sequence[MergedFile] = ()


@dataclass(frozen=True)
class TorchFile(PendingFile):
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
        return replace(self, content=buffers.snapshot(self.content))

    def deferred(self) -> list[DeferredTensor]:
        """Return the tensors that are fetched when the file is written, in that order."""
        return deferred_in(self.content)

    def write(self, sink: FileSink) -> None:
        """Write the content; deferred tensors are fetched before, and are in memory together."""
        content = map_tensors(self.content, compact_on_cpu)
        if is_trained_file(self.name):
            sink.examine(content)
        torch.save(content, sink)  # type: ignore[arg-type]


@dataclass(frozen=True)
class SafetensorsFile(PendingFile):
    """A safetensors file; its tensors are written one at a time."""

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
        ordered = {name: self.tensors[name] for name in order_of_writing(self.tensors)}
        return replace(self, tensors=buffers.snapshot(ordered))

    def deferred(self) -> list[DeferredTensor]:
        """Return the tensors that are fetched when the file is written, in that order."""
        return deferred_in([self.tensors[name] for name in order_of_writing(self.tensors)])

    def write(self, sink: FileSink) -> None:
        """Write the content."""
        examine = sink.examine if is_trained_file(self.name) else None
        write_safetensors(sink, self.tensors, metadata=self.metadata, examine=examine)


@dataclass(frozen=True)
class JsonFile(PendingFile):
    """A JSON file."""

    name: str
    content: Any

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
    empty = [name for name, value in state.items() if isinstance(value, torch.Tensor) and value.is_meta]
    if empty:
        listed = ", ".join(f"`{name}`" for name in empty[:5])
        more = f" and {len(empty) - 5} more" if len(empty) > 5 else ""
        raise CheckpointError(
            f"{listed}{more} of model {index} cannot be saved: on the meta device a tensor has no values. "
            "Load the weights first, for example with `load_checkpoint_in_model`."
        )
    names = weight_format(index, safe=safe)
    second_names = second_names_of(state) if safe else second_names_in(sharable_in(state))
    members_of = {name: [name] for name in state if name not in second_names}
    for name, kept in second_names.items() if not safe else ():
        members_of[kept].append(name)  # `torch.save` stores the tensor once, in the same file

    def file(name: str, members: Sequence[str]) -> PendingFile:
        content = {member: state[member] for member in members}
        if safe:
            return SafetensorsFile(name, content, metadata_of(content, second_names))
        return TorchFile(name, content, must_be_plain)

    if max_shard_size is None:
        return [file(names.whole, list(state) if not safe else list(members_of))]
    groups = [(members, _num_bytes(state[first])) for first, members in members_of.items()]
    shards = plan_shards(groups, max_shard_size=max_shard_size)
    if len(shards) == 1:
        return [file(names.whole, shards[0])]
    files = {names.shard(number, num_shards=len(shards)): members for number, members in enumerate(shards, 1)}
    content = {
        "metadata": {"total_size": sum(size for _, size in groups)},
        "weight_map": {member: name for name, members in files.items() for member in members},
    }
    return [*(file(name, members) for name, members in files.items()), JsonFile(names.index, content)]


def write_files(
    files: Sequence[PendingFile], folder: Path, *, num_threads: int = 1, advance: Advance | None = None
) -> list[FileSink]:
    """Write the files and their notes to ``folder``, force the files to disk, and return their sinks.

    Args:
        files: The files to write.
        folder: An existing folder.
        num_threads: How many files to write at a time, at most a few.
        advance: Called with the number of bytes written, again and again.
    """

    def write(file: PendingFile) -> FileSink:
        sink = write_file(file, folder, advance=advance)
        if sink.note:
            (folder / f"{file.name}{NOTE_SUFFIX}").write_text(sink.note, encoding="utf-8")
        return sink

    if num_threads == 1 or len(files) < 2:
        return [write(file) for file in files]
    # In a forked process torch replaces its pool of threads at the first use, which fails in two threads at once.
    torch.set_num_threads(torch.get_num_threads())
    with ThreadPoolExecutor(min(num_threads, MAX_WRITERS), thread_name_prefix="accel-checkpoint") as pool:
        return list(pool.map(write, files))


def write_file(
    file: PendingFile, folder: Path, *, replace: bool = False, advance: Advance | None = None
) -> FileSink:
    """Write one file to ``folder`` and force it to disk; fails if the file exists, unless ``replace`` is set."""
    path = folder / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    if replace:
        path.unlink(missing_ok=True)
    with FileSink(path, advance=advance) as sink:
        file.write(sink)
    return sink


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


def _num_bytes(value: Any) -> int:
    """Return the size of a value; that of a sparse tensor if it were dense, which is an upper bound."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return value.nbytes if isinstance(value, DeferredTensor) else 0
