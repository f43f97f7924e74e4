"""Writes what `torch.save` would write, one tensor at a time: each is fetched when its turn comes."""

from __future__ import annotations

import io
import pickle
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

from accel_checkpoint.formats.deferred import DeferredTensor, fetched
from accel_checkpoint.formats.safetensor_writing import Writable, bytes_of
from accel_checkpoint.saving.snapshot import is_plain

_ALIGNMENT = 64
_PADDING_ID = 0x4246
"""Marks the extra field of a member that moves its content to an aligned offset, as torch does."""


def write_torch_archive(sink: Writable, content: Any) -> None:
    """Write nested containers of plain values and tensors, among them deferred ones.

    A tensor, or a deferred one, that occurs twice is stored once. What is fetched is released again before the next.

    Args:
        sink: Receives the bytes, from the start of the file.
        content: What `torch.load` is to return.
    """
    structure = io.BytesIO()
    pickler = _Pickler(structure)
    pickler.dump(content)
    out = _Counting(sink)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:  # type: ignore[call-overload]
        _add(archive, out, "data.pkl", structure.getvalue())
        _add(archive, out, "byteorder", sys.byteorder.encode())
        for key, tensor in enumerate(pickler.tensors):
            _add(archive, out, f"data/{key}", bytes_of(fetched(tensor)))
        _add(archive, out, "version", b"3\n")


def deferred_in(content: Any) -> list[DeferredTensor]:
    """Return the deferred tensors in nested containers, each once, in the order in which they are written."""
    found: dict[int, DeferredTensor] = {}
    _collect(content, found)
    return list(found.values())


def _collect(content: Any, found: dict[int, DeferredTensor]) -> None:
    if isinstance(content, DeferredTensor):
        found.setdefault(id(content), content)
    elif isinstance(content, Mapping):
        for value in content.values():
            _collect(value, found)
    elif isinstance(content, (list, tuple)):
        for value in content:
            _collect(value, found)


class _Storage:
    """Stands for the memory of one tensor in the pickle."""

    def __init__(self, key: int, kind: type, numel: int) -> None:
        self.id = ("storage", kind, str(key), "cpu", numel)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=2)
        self.tensors: list[torch.Tensor | DeferredTensor] = []
        self._storages: dict[int, _Storage] = {}

    def persistent_id(self, value: Any) -> Any:
        return value.id if isinstance(value, _Storage) else None

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, DeferredTensor) and not (
            isinstance(value, torch.Tensor) and is_plain(value)
        ):
            return NotImplemented
        if id(value) not in self._storages:
            numel = value.nbytes // value.dtype.itemsize
            known = torch.storage._dtype_to_storage_type_map().get(value.dtype)
            kind = torch.UntypedStorage if known is None else getattr(torch, known)
            self._storages[id(value)] = _Storage(len(self.tensors), kind, numel)
            self.tensors.append(value)
        storage, shape = self._storages[id(value)], torch.Size(value.shape)
        strides = torch.empty(shape, device="meta").stride()
        arguments: tuple[Any, ...] = (storage, 0, tuple(shape), strides, False, OrderedDict())
        if storage.id[1] is torch.UntypedStorage:
            storage.id = (*storage.id[:4], value.nbytes)
            return torch._utils._rebuild_tensor_v3, (*arguments, value.dtype)
        return torch._utils._rebuild_tensor_v2, arguments


class _Counting:
    """A file that can only be appended to, and knows how long it is."""

    def __init__(self, sink: Writable) -> None:
        self._sink = sink
        self.position = 0

    def write(self, data: bytes | memoryview) -> int:
        self._sink.write(data)
        self.position += memoryview(data).nbytes
        return memoryview(data).nbytes

    def flush(self) -> None:
        pass


def _add(archive: zipfile.ZipFile, out: _Counting, name: str, data: bytes | memoryview) -> None:
    """Add a member whose content begins at a multiple of 64 bytes."""
    member = zipfile.ZipInfo(f"archive/{name}")
    num_bytes = memoryview(data).nbytes
    is_large = num_bytes >= 2**31 - 1
    header = 30 + len(member.filename) + (20 if is_large else 0) + 4
    padding = -(out.position + header) % _ALIGNMENT
    member.extra = _PADDING_ID.to_bytes(2, "little") + padding.to_bytes(2, "little") + b"Z" * padding
    with archive.open(member, "w", force_zip64=is_large) as file:
        file.write(data)
