"""Tensors that `torch.save` wrote to parts of a file, mapped into memory: what is asked for is copied once."""

from __future__ import annotations

import io
import mmap
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZipInfo

import torch
from torch._weights_only_unpickler import Unpickler

from accel_checkpoint.formats.pickle_opcodes import check_pickle
from accel_checkpoint.formats.plain_data import check_loaded
from accel_checkpoint.formats.torch_files import checked_members, naming_damage
from accel_checkpoint.saving.snapshot import is_plain

_LARGEST_PICKLE = 4096
"""That of a plain tensor has some 300 bytes."""
_LOCAL_HEADER_BYTES = 30


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a tensor lies in its storage.

    Attributes:
        record: Name of the storage in the archive.
        num_bytes: Size of the storage.
        tensor: A tensor on the meta device with this layout.
    """

    record: str
    num_bytes: int
    tensor: torch.Tensor


def mapped_tensor(file: BinaryIO, path: Path, *, start: int, num_bytes: int) -> torch.Tensor | None:
    """Return the tensor that `torch.save` wrote to a part of a file, as a view of the mapped file.

    Args:
        file: The open file; it may be closed while the tensor is in use, but not cut short.
        path: Its path, for messages.
        start: First byte of the part.
        num_bytes: Size of the part.

    Returns:
        The tensor, of which only what is accessed is read; None if the part holds anything but one ordinary tensor of
        this machine's byte order, which `torch.load` has to read.

    Raises:
        CheckpointError: If the part is damaged, or names what could run code.
    """
    before = start % mmap.ALLOCATIONGRANULARITY
    with naming_damage(path):
        content = mmap.mmap(file.fileno(), before + num_bytes, offset=start - before, access=mmap.ACCESS_COPY)
    members = {
        member.filename.partition("/")[2]: member for member in checked_members(content, path, num_bytes)
    }
    with naming_damage(path):
        if "byteorder" in members and _bytes_of(content, members["byteorder"]) != sys.byteorder.encode():
            return None
        if members["data.pkl"].file_size > _LARGEST_PICKLE:
            return None
        layout = _layout_in(_bytes_of(content, members["data.pkl"]))
        if layout is None:
            return None
        record, like = members[layout.record], layout.tensor
        if record.file_size < layout.num_bytes:
            raise ValueError(f"`{layout.record}` is too short")
        values = torch.frombuffer(
            content, dtype=torch.uint8, count=layout.num_bytes, offset=_begin_of(content, record)
        )
        tensor = values.view(like.dtype).as_strided(like.shape, like.stride(), like.storage_offset())
        check_loaded(tensor, num_bytes=num_bytes)
        return tensor


@lru_cache(maxsize=1024)
def _layout_in(pickled: bytes) -> _Layout | None:
    """Return what the pickle of an archive describes, None if it is not one ordinary tensor.

    Cached, since parts of one shape and type have the same pickle.
    """
    if b"_rebuild_sparse_tensor" in pickled:
        return None  # torch would note the tensor, and check values that it has not with the next file
    check_pickle(pickled)
    unpickler = _StructureUnpickler(io.BytesIO(pickled), encoding="utf-8")
    tensor = unpickler.load()  # type: ignore[no-untyped-call]
    if len(unpickler.storages) != 1 or not isinstance(tensor, torch.Tensor) or not is_plain(tensor):
        return None
    if tensor.is_conj() or tensor.is_neg():
        return None
    return _Layout(*unpickler.storages.popitem(), tensor.detach())


class _StructureUnpickler(Unpickler):
    """The unpickler of `torch.load(weights_only=True)`, its storages without memory."""

    def __init__(self, file: io.BytesIO, *, encoding: str) -> None:
        super().__init__(file, encoding=encoding)
        self.storages: dict[str, int] = {}

    def persistent_load(self, identity: Any) -> Any:
        """Return a storage on the meta device, and note its size by its name in the archive."""
        _, kind, key, _, numel = identity
        dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
        self.storages[f"data/{key}"] = numel * dtype.itemsize
        return torch.empty(numel, dtype=dtype, device="meta")._typed_storage()  # type: ignore[no-untyped-call]


def _bytes_of(content: mmap.mmap, member: ZipInfo) -> bytes:
    begin = _begin_of(content, member)
    return content[begin : begin + member.file_size]


def _begin_of(content: mmap.mmap, member: ZipInfo) -> int:
    """Return where the content of a member begins: after its own header with a name and an extra field."""
    begin = member.header_offset + _LOCAL_HEADER_BYTES
    name, extra = content[begin - 4 : begin - 2], content[begin - 2 : begin]
    return begin + int.from_bytes(name, "little") + int.from_bytes(extra, "little")
