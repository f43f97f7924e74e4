"""Assign tensors to files when a checkpoint is split into shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from accel_ops.byte_sizes import convert_file_size_to_int
from accel_state.errors import ConfigError


def plan_shards(groups: Iterable[tuple[Sequence[str], int]], *, max_shard_size: int | str) -> list[list[str]]:
    """Return the names for each file, in the given order; a file is full when the next group does not fit.

    Args:
        groups: Names that must stay together because they share memory, with their size in bytes.
        max_shard_size: Bytes, or a string such as ``"5GB"``. A larger group gets its own file.

    Returns:
        At least one list, which is empty if there is nothing to save.
    """
    limit = convert_file_size_to_int(max_shard_size)
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
