"""The byte range of each tensor in a safetensors file, to read or map tensors without copying the file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from accel_checkpoint.files import check_regular, naming_read_errors
from accel_state.errors import CheckpointError

DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I16": torch.int16,
    "U32": torch.uint32, "I32": torch.int32, "U64": torch.uint64, "I64": torch.int64, "F16": torch.float16,
    "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}  # fmt: skip
_LARGEST_HEADER = 100_000_000


class ByteRange(NamedTuple):
    """The location of one tensor; ``start`` is relative to the start of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class SafetensorsLayout:
    """The byte range of every tensor in a file."""

    path: Path
    ranges: Mapping[str, ByteRange]
    second_names: Mapping[str, str]

    def __getitem__(self, name: str) -> ByteRange:
        """Return the range of a tensor by its stored name or a further name."""
        return self.ranges[self.second_names.get(name, name)]


def read_layout(path: Path) -> SafetensorsLayout:
    """Return the layout of a file; reads only its header.

    Raises:
        CheckpointError: If it is not a safetensors file, or its header contradicts its size.
    """
    check_regular(path)
    size = path.stat().st_size
    with naming_read_errors(path), path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_LARGEST_HEADER, size - 8):
            raise _unreadable(path, "its header does not fit into it")
        try:
            header = json.loads(file.read(length), object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise _unreadable(path, f"its header is not valid JSON ({error})") from error
    if not isinstance(header, dict):
        raise _unreadable(path, "its header is not a table")
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _unreadable(path, "its metadata is not a table of strings")
    ranges = {name: _range(path, name, entry, 8 + length, size) for name, entry in header.items()}
    spans = sorted(
        (place.start, place.start + place.num_bytes) for place in ranges.values() if place.num_bytes
    )
    if any(end > start for (_, end), (start, _) in pairwise(spans)):
        raise _unreadable(path, "its tensors overlap")
    second = {name: kept for name, kept in metadata.items() if kept in ranges and name not in ranges}
    return SafetensorsLayout(path, ranges, second)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(table := dict(pairs)) < len(pairs):
        raise ValueError("a key occurs twice")
    return table


def _range(path: Path, name: str, entry: Any, base: int, size: int) -> ByteRange:
    if isinstance(entry, dict) and entry.get("dtype") in ("F4", "F6_E2M3", "F6_E3M2"):
        raise CheckpointError(
            f"`{name}` in `{path}` has the dtype `{entry['dtype']}`, of less than 8 bits, which is not supported. "
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
        raise _unreadable(path, f"`{name}` does not lie inside it")
    return ByteRange(dtype, tuple(shape), base + start, num_bytes)


def _unreadable(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"`{path}` is not a readable safetensors file: {why}. It may be cut short; copy or save it again."
    )


class MappedFile:
    """A memory-mapped file; tensors are views, read from disk on access and copied on write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        num_bytes = path.stat().st_size
        self._storage: Any = torch.UntypedStorage.from_file(str(path), shared=False, nbytes=num_bytes)

    def tensor(self, place: ByteRange) -> torch.Tensor:
        """Return a tensor that is a view of the mapped bytes, or a copy if they are not aligned."""
        item = place.dtype.itemsize
        if place.start % item:
            raw = torch.empty(0, dtype=torch.uint8).set_(self._storage, place.start, (place.num_bytes,), (1,))
            return raw.clone().view(place.dtype).reshape(place.shape)
        return torch.empty(0, dtype=place.dtype).set_(
            self._storage, place.start // item, place.shape, _contiguous_strides(place.shape)
        )

    def read_ahead(self, place: ByteRange) -> None:
        """Start to read the bytes of a tensor from disk into memory, where the system offers it."""
        if hasattr(os, "posix_fadvise"):
            with self.path.open("rb", buffering=0) as file:
                if not _is_cached(file.fileno(), place):
                    os.posix_fadvise(file.fileno(), place.start, place.num_bytes, os.POSIX_FADV_WILLNEED)

    def __deepcopy__(self, memo: dict[int, Any]) -> MappedFile:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedFile, (self.path,)


def _is_cached(descriptor: int, place: ByteRange) -> bool:
    """Whether the first, middle and last bytes of a tensor are in memory; advice makes the system look at all pages."""
    if not hasattr(os, "RWF_NOWAIT"):
        return False
    try:
        for position in (0, place.num_bytes // 2, place.num_bytes - 1):
            os.preadv(descriptor, [bytearray(1)], place.start + position, os.RWF_NOWAIT)
    except OSError:  # they are not, or the file system cannot say
        return False
    return True


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
