"""The files that one or all ranks write to a checkpoint: formats, digests and safe writing."""

from __future__ import annotations

import errno
import json
import os
import shutil
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, TracebackType
from typing import Any, Protocol, Self

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from accel_checkpoint.file_names import MANIFEST_NAME, TORCH_SUFFIXES, is_trained_file
from accel_checkpoint.files import Digest, FileEntry, is_plain_name, shown
from accel_checkpoint.formats.weight_files import DTYPES
from accel_checkpoint.progress import Advance
from accel_checkpoint.saving.snapshot import CallersStreams, HostBuffers
from accel_checkpoint.tensors import (
    DeferredTensor,
    check_plain,
    compact_on_cpu,
    deferred_in,
    fetching_all,
    map_tensors,
    nonfinite_in,
    second_names_in,
)
from accel_state.errors import CheckpointError, ConfigError

ALIGNMENT = 64  # that of torch's CPU allocator
MAX_WRITERS = 4
_BUFFER_BYTES = 2**16
"""Smaller pieces are collected: `torch.save` writes a few bytes before and after each tensor."""
_CHUNK_BYTES = 4 * 2**20
"""Small enough to be in the processor's cache for both the digest and the write; both release the GIL."""
_CODES = {dtype: code for code, dtype in DTYPES.items()}


class PendingFile:
    """A file that has not been written to the checkpoint yet."""

    name: str
    """File name, relative to the checkpoint's folder."""
    is_writer: bool = True
    """Whether this rank writes it; the other ranks only fetch its deferred tensors."""
    deferred: Sequence[DeferredTensor] = ()
    """The tensors that all ranks fetch together, in this order, while one of them writes the file."""

    def snapshot(self, buffers: HostBuffers) -> PendingFile:
        """Return a snapshot of the file, which training does not change."""
        return self

    @abstractmethod
    def write(self, sink: FileSink) -> str:
        """Write the content, and return the name of the first trained value that is not finite; empty if none is."""

    def table(self, names: Collection[str]) -> PendingFile | None:
        """Return the file that rank 0 writes when all files are on disk, if this one is a part of a state.

        Args:
            names: The files that the ranks have written.
        """
        return None


@dataclass
class TorchFile(PendingFile):
    """A `torch.save` file.

    Attributes:
        name: File name.
        content: What `torch.load` returns.
        must_be_plain: Reject content that could not be loaded without running code.
        is_trained: Whether its values should be finite.
        is_writer: Whether this rank writes it.
    """

    name: str
    content: Any
    must_be_plain: bool = True
    is_trained: bool = False
    is_writer: bool = True

    def __post_init__(self) -> None:
        if self.must_be_plain:
            self.deferred = check_plain(self.content, file_name=self.name)
        else:
            self.deferred = deferred_in(self.content)

    def snapshot(self, buffers: HostBuffers) -> TorchFile:
        """Return the file with copies of its tensors."""
        content = buffers.snapshot(self.content)
        return TorchFile(self.name, content, must_be_plain=False, is_trained=self.is_trained)

    def write(self, sink: FileSink) -> str:
        """Write the content; deferred tensors are fetched before, and are in memory together."""
        content = map_tensors(self.content, compact_on_cpu)
        nonfinite = nonfinite_in(content) if self.is_trained else ""
        torch.save(content, sink)  # type: ignore[arg-type]
        return nonfinite


@dataclass
class SafetensorsFile(PendingFile):
    """A safetensors file; its tensors are written one at a time.

    Attributes:
        name: File name.
        tensors: Plain dense tensors.
        second_names: Other names of tied weights, with the stored name.
        is_trained: Whether its values should be finite.
        is_writer: Whether this rank writes it.
    """

    name: str
    tensors: Mapping[str, torch.Tensor | DeferredTensor]
    second_names: Mapping[str, str] = field(default_factory=dict)
    is_trained: bool = True
    is_writer: bool = True

    def __post_init__(self) -> None:
        self.tensors = {name: self.tensors[name] for name in order_of_writing(self.tensors)}
        self.deferred = [each for each in self.tensors.values() if isinstance(each, DeferredTensor)]

    @classmethod
    def of(cls, name: str, state: Mapping[str, Any], *, is_trained: bool = True) -> Self:
        """Return the file for a state dict; tied weights are stored once."""
        second_names = second_names_of(state)
        tensors = {key: tensor for key, tensor in state.items() if key not in second_names}
        return cls(name, tensors, second_names, is_trained)

    def snapshot(self, buffers: HostBuffers) -> SafetensorsFile:
        """Return the file with copies of its tensors."""
        return SafetensorsFile(self.name, buffers.snapshot(self.tensors), self.second_names, self.is_trained)

    def write(self, sink: FileSink) -> str:
        """Write the content."""
        names = {name: kept for name, kept in self.second_names.items() if kept in self.tensors}
        metadata = {"format": "pt", **names}  # as in the package `safetensors`
        return write_safetensors(sink, self.tensors, metadata=metadata, must_be_finite=self.is_trained)


@dataclass(frozen=True)
class JsonFile(PendingFile):
    """A JSON file."""

    name: str
    content: Any
    is_writer: bool = True

    def write(self, sink: FileSink) -> str:
        """Write the content."""
        sink.write(json.dumps(self.content, indent=2).encode() + b"\n")
        return ""


def pending_file(name: str, content: Any) -> PendingFile:
    """Return a file in the format that the suffix of its name selects.

    Raises:
        ConfigError: If the suffix is unknown, or the name leads out of the folder or is the manifest's.
        CheckpointError: If the format cannot store the content.
    """
    if not is_plain_name(name) or name == MANIFEST_NAME:
        raise ConfigError(f"`{name}` cannot be the name of a file in a checkpoint. Choose another.")
    if name.endswith(".safetensors"):
        return SafetensorsFile.of(name, content, is_trained=is_trained_file(name))
    if name.endswith(".json"):
        return JsonFile(name, content)
    if name.endswith(TORCH_SUFFIXES):
        return TorchFile(name, content, is_trained=is_trained_file(name))
    raise ConfigError(
        f"`{name}` does not end in a known suffix, which selects the file format. Use one of .safetensors, .json, "
        f"{', '.join(TORCH_SUFFIXES)}."
    )


def snapshot_of(file: PendingFile, buffers: HostBuffers) -> PendingFile | None:
    """Return a snapshot of a file; None on a rank that does not write it. See `write_file`."""
    with fetching_all(file.deferred):
        return file.snapshot(buffers) if file.is_writer else None


def write_files(
    files: Sequence[PendingFile], folder: Path, *, num_threads: int = 1, advance: Advance | None = None
) -> list[FileEntry]:
    """Write files without deferred tensors to an existing folder, force them to disk, and return their entries."""

    def write(file: PendingFile) -> FileEntry:
        return _write(file, folder, replace=False, advance=advance)

    if num_threads == 1 or len(files) < 2:
        return [write(file) for file in files]
    for file in files:
        file.snapshot(CallersStreams())
    # In a forked process torch replaces its pool of threads at the first use, which fails in two threads at once.
    torch.set_num_threads(torch.get_num_threads())
    with ThreadPoolExecutor(min(num_threads, MAX_WRITERS), thread_name_prefix="accel-checkpoint") as pool:
        return list(pool.map(write, files))


def write_file(
    file: PendingFile, folder: Path, *, replace: bool = False, advance: Advance | None = None
) -> FileEntry | None:
    """Write one file to an existing folder as `write_files` does; None on a rank that does not write it.

    If the file has deferred tensors, every rank must call it. Without ``replace``, an existing file is an error.
    """
    with fetching_all(file.deferred):
        return _write(file, folder, replace=replace, advance=advance) if file.is_writer else None


def _write(file: PendingFile, folder: Path, *, replace: bool, advance: Advance | None) -> FileEntry:
    path = folder / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    if replace:
        path.unlink(missing_ok=True)
    with FileSink(path, advance=advance) as sink:
        nonfinite = file.write(sink)
    return FileEntry(file.name, sink.num_bytes, sink.digest, nonfinite=nonfinite)


class FileSink:
    """Writes a new file, computes its digest and forces it to disk; `torch.save` accepts it as a file object."""

    def __init__(self, path: Path, *, advance: Advance | None = None) -> None:
        self.path = path
        self._descriptor = os.open(  # O_BINARY: else Windows would write CRLF for each LF
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666
        )
        self._buffer = bytearray()
        self._digest: Digest | None = None  # created with the first bytes
        self._advance = advance
        self._error: OSError | None = None
        self._num_written = 0
        self._num_flushed = 0  # bytes that the disk has been requested to write
        self.num_bytes = 0
        self.digest = ""
        """Digest of the file, once it is closed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._flush()
                self.digest = str(self._digest or Digest())
                os.fsync(self._descriptor)
        except OSError as failed:
            self._keep(failed)
        finally:
            try:
                os.close(self._descriptor)
            except OSError as failed:
                self._keep(failed)
        # `torch.save` replaces the error of a write with one about positions in the file, which hides a full disk.
        if self._error is not None and self._error is not error and isinstance(error, (Exception, NoneType)):
            raise self._error from error

    def write(self, data: bytes | memoryview) -> int:
        """Append ``data`` and return its size in bytes."""
        view = memoryview(data).cast("B")
        self.num_bytes += len(view)
        if len(self._buffer) + len(view) <= _BUFFER_BYTES:
            self._buffer += view
            return len(view)
        self._flush()
        for start in range(0, len(view), _CHUNK_BYTES):
            self._append(view[start : start + _CHUNK_BYTES])
        return len(view)

    def flush(self) -> None:
        """Do nothing: collected bytes are written when the file is closed."""

    def _flush(self) -> None:
        collected, self._buffer = self._buffer, bytearray()
        if collected:
            self._append(memoryview(collected))

    def _append(self, chunk: memoryview) -> None:
        self._digest = self._digest or Digest()
        self._digest.update(chunk)
        if self._advance is not None:
            self._advance(len(chunk))
        try:
            while chunk:
                num_bytes = os.write(self._descriptor, chunk)
                chunk = chunk[num_bytes:]
                self._num_written += num_bytes
            if self._num_written - self._num_flushed >= _CHUNK_BYTES:
                self._start_flush()
        except OSError as error:
            self._keep(error)
            raise self._error from error  # type: ignore[misc]  # `_keep` has set it

    def _start_flush(self) -> None:
        """Write to disk while more is computed: otherwise all of it waits for `fsync` at the end."""
        start, self._num_flushed = self._num_flushed, self._num_written
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):  # a hint that some file systems do not support
                # Linux starts to write these pages, and drops only pages that are already on the disk: nothing is lost.
                os.posix_fadvise(self._descriptor, start, self._num_written - start, os.POSIX_FADV_DONTNEED)

    def _keep(self, error: OSError) -> None:
        """Keep the first error, with the name of the file: `torch.save` may call `write` again after one."""
        if self._error is not None:
            return
        reason = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(self.path.parent).free
            reason += f" ({free} bytes are free on the disk; free some, or save elsewhere)"
        self._error = OSError(error.errno, reason, str(self.path))


class Writable(Protocol):
    """Accepts bytes to append."""

    def write(self, data: bytes | memoryview, /) -> int: ...


def write_safetensors(
    sink: Writable,
    tensors: Mapping[str, torch.Tensor | DeferredTensor],
    *,
    metadata: Mapping[str, str],
    must_be_finite: bool = False,
) -> str:
    """Write plain dense tensors of any shape and device as a safetensors file; each is copied to the CPU in turn.

    They are aligned to 64 bytes as far as the format allows, so that they can be used directly from a mapped file with
    bit-identical results: matrix kernels choose the order of summation by the alignment of their inputs.

    Returns:
        With ``must_be_finite``, the name of the first tensor with values that are not finite; otherwise empty.

    Raises:
        CheckpointError: If the format has no name for a dtype, or reserves the name of a tensor.
    """
    # The format allows no gaps, so tensors that would misalign the next one are last, the widest dtypes first.
    names = order_of_writing(tensors)
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    if "__metadata__" in tensors:
        raise CheckpointError(
            "safetensors cannot store a tensor called `__metadata__`: its header uses the name. Rename it, or pass "
            "`safe_serialization=False`."
        )
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in _CODES:
            raise CheckpointError(
                f"safetensors has no type for `{name}`, which is {tensor.dtype}. Pass `safe_serialization=False`."
            )
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    try:
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(
            f"safetensors cannot store the name of a tensor with {error.object[error.start]!a}, which is not UTF-8. "
            f"Rename it, or pass `safe_serialization=False`. The names are {shown(ascii(names))}."
        ) from error
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    here = {name: tensors[name] for name in names if isinstance(tensors[name], torch.Tensor)}
    nonfinite = nonfinite_in(here) if must_be_finite else ""
    sink.write(len(text).to_bytes(8, "little") + text)
    for name in names:
        if not tensors[name].nbytes:
            continue
        tensor = tensors[name]
        if isinstance(tensor, DeferredTensor):
            tensor = tensor.fetch()
            if must_be_finite:
                nonfinite = nonfinite or nonfinite_in({name: tensor})
        # The bytes are not copied if the tensor is contiguous on the CPU.
        dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        sink.write(memoryview(dense.reshape(-1).view(torch.uint8).numpy().data))
    return nonfinite


def order_of_writing(tensors: Mapping[str, torch.Tensor | DeferredTensor]) -> list[str]:
    """Return the names in the order of writing and fetching; it depends on sizes and dtypes, not on shape or device."""
    return sorted(tensors, key=lambda n: (tensors[n].nbytes % ALIGNMENT != 0, -tensors[n].dtype.itemsize, n))


def second_names_of(state: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of tied weights that a safetensors file does not store, with the stored name.

    Raises:
        CheckpointError: If the format cannot store a value.
    """
    unsupported = []
    for name, value in state.items():
        is_wrapper: bool = is_traceable_wrapper_subclass(value)
        if isinstance(value, DeferredTensor):
            continue
        if is_wrapper:
            unsupported.append(f"`{name}` is a {type(value).__name__}")
        elif not isinstance(value, torch.Tensor):
            unsupported.append(f"`{name}` is of type {type(value).__name__}")
        elif value.layout != torch.strided:
            unsupported.append(f"`{name}` is a tensor of layout {value.layout}")
        elif value.is_quantized:
            unsupported.append(f"`{name}` is quantized ({value.dtype})")
    if unsupported:
        raise CheckpointError(
            f"safetensors stores plain dense tensors only, but {'; '.join(unsupported)}. "
            "Leave these out of the state dict, gather or convert them, or pass `safe_serialization=False`."
        )
    return second_names_in(state)
