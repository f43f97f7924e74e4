"""Assign tensors to files when a checkpoint is split into shards."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from accel_checkpoint.formats.deferred import DeferredTensor
from accel_checkpoint.saving.snapshot import is_plain
from accel_ops.byte_sizes import convert_file_size_to_int
from accel_ops.shared_tensors import id_tensor_storage, id_tensor_view
from accel_state.errors import ConfigError


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
