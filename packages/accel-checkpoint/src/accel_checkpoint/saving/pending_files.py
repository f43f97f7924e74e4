"""What a rank writes into a checkpoint: one file per file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

import torch

from accel_checkpoint.file_names import MANIFEST_NAME, weight_format
from accel_checkpoint.files import is_plain_name
from accel_checkpoint.formats.pickle_files import PickleWriter
from accel_checkpoint.formats.plain_data import check_plain
from accel_checkpoint.formats.safetensor_files import SafetensorsWriter
from accel_checkpoint.formats.safetensor_writing import write_safetensors
from accel_checkpoint.formats.sharding import plan_shards
from accel_checkpoint.manifest import FileEntry
from accel_checkpoint.saving.low_priority import Work, at_once
from accel_checkpoint.saving.sink import FileSink
from accel_checkpoint.saving.snapshot import HostBuffers, map_tensors, without_waste
from accel_state.errors import CheckpointError, ConfigError

MAX_WRITERS = 4
TORCH_ENDINGS = (".bin", ".pt", ".pth", ".pkl")


class PendingFile(Protocol):
    """One file on its way into a checkpoint."""

    @property
    def name(self) -> str:
        """Name of the file, relative to the checkpoint's folder."""
        ...

    def copied_to(self, buffers: HostBuffers) -> PendingFile:
        """Return the file as it is now; it no longer changes when training goes on."""
        ...

    def write(self, sink: FileSink) -> None:
        """Write the content."""
        ...


@dataclass(frozen=True)
class TorchFile:
    """A file of `torch.save`, of plain data only."""

    name: str
    content: Any

    def __post_init__(self) -> None:
        check_plain(self.content, file_name=self.name)

    def copied_to(self, buffers: HostBuffers) -> Self:
        """Return the file with copies of its tensors."""
        copied = map_tensors(self.content, lambda path, tensor: buffers.copy((self.name, *path), tensor))
        return replace(self, content=copied)

    def write(self, sink: FileSink) -> None:
        """Write the content."""
        torch.save(map_tensors(self.content, without_waste), sink)  # type: ignore[arg-type]


@dataclass(frozen=True)
class SafetensorsFile:
    """A safetensors file."""

    name: str
    tensors: Mapping[str, torch.Tensor]
    metadata: Mapping[str, str]

    @classmethod
    def of(cls, name: str, state: Mapping[str, Any]) -> Self:
        """Return the file of a state dict, in which tied weights stand once."""
        writer = SafetensorsWriter(state)
        return cls(name, writer.tensors, writer.metadata(writer.tensors))

    def copied_to(self, buffers: HostBuffers) -> Self:
        """Return the file with copies of its tensors."""
        copied = map_tensors(
            dict(self.tensors), lambda path, tensor: buffers.copy((self.name, *path), tensor)
        )
        return replace(self, tensors=copied)

    def write(self, sink: FileSink) -> None:
        """Write the content."""
        write_safetensors(sink, self.tensors, metadata=self.metadata)


@dataclass(frozen=True)
class JsonFile:
    """A file of JSON."""

    name: str
    content: Any

    def copied_to(self, buffers: HostBuffers) -> Self:
        """Return the file: nothing in it changes."""
        return self

    def write(self, sink: FileSink) -> None:
        """Write the content."""
        sink.write(json.dumps(self.content, indent=2).encode() + b"\n")


def pending_file(name: str, content: Any) -> PendingFile:
    """Return a file by the ending of its name.

    Raises:
        ConfigError: If the name has an ending that is not known, leads out of the folder, or is the manifest's.
        CheckpointError: If the format cannot hold the content.
    """
    if not is_plain_name(name) or name == MANIFEST_NAME:
        raise ConfigError(f"`{name}` cannot be the name of a file in a checkpoint. Choose another.")
    if name.endswith(".safetensors"):
        return SafetensorsFile.of(name, content)
    if name.endswith(".json"):
        return JsonFile(name, content)
    if name.endswith(TORCH_ENDINGS):
        return TorchFile(name, content)
    raise ConfigError(
        f"The ending of `{name}` says how the file is written, and is none of .safetensors, .json, "
        f"{', '.join(TORCH_ENDINGS)}."
    )


def pending_weights(
    state: Mapping[str, Any], *, index: int, safe: bool, max_shard_size: int | str | None
) -> list[PendingFile]:
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

    def file(name: str, members: list[str]) -> PendingFile:
        content = {member: state[member] for member in members}
        if isinstance(writer, SafetensorsWriter):
            return SafetensorsFile(name, content, writer.metadata(members))
        return TorchFile(name, content)

    if len(shards) == 1:
        return [file(names.whole, shards[0])]
    files = {names.shard(number, num_shards=len(shards)): members for number, members in enumerate(shards, 1)}
    content = {
        "metadata": {"total_size": sum(size for _, size in groups)},
        "weight_map": {member: name for name, members in files.items() for member in members},
    }
    return [*(file(name, members) for name, members in files.items()), JsonFile(names.index, content)]


def write_files(
    files: list[PendingFile],
    folder: Path,
    *,
    rank: int,
    place: int,
    num_threads: int,
    run: Callable[[Work], None] = at_once,
) -> list[FileEntry]:
    """Write all files into ``folder``, several at a time, each forced to disk; return what they became.

    Args:
        files: What to write.
        folder: Where to; it is there.
        rank: Who writes.
        place: Which machine's part of the checkpoint it is.
        num_threads: Files that are written at a time.
        run: Does what takes long, from as many threads.
    """

    def write(file: PendingFile) -> FileEntry:
        sink = write_file(file, folder, run=run)
        return FileEntry(file.name, sink.num_bytes, sink.digest, rank=rank, place=place)

    if num_threads == 1 or len(files) < 2:
        return [write(file) for file in files]
    with ThreadPoolExecutor(min(num_threads, MAX_WRITERS), thread_name_prefix="accel-checkpoint") as pool:
        return list(pool.map(write, files))


def write_file(
    file: PendingFile, folder: Path, *, replace: bool = False, run: Callable[[Work], None] = at_once
) -> FileSink:
    """Write one file into ``folder``, forced to disk; an existing file of that name is in the way."""
    path = folder / file.name
    if replace:
        path.unlink(missing_ok=True)
    with FileSink(path, run=run) as sink:
        file.write(sink)
    return sink


def _refuse_meta(state: Mapping[str, Any], *, index: int) -> None:
    empty = [name for name, value in state.items() if isinstance(value, torch.Tensor) and value.is_meta]
    if empty:
        raise CheckpointError(
            f"`{empty[0]}` of model {index} cannot be saved: on the meta device a tensor has no values. "
            "Load the weights first, for example with `load_checkpoint_in_model`."
        )
