"""Which tensor goes into which file when a checkpoint is split."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from accel_ops.byte_sizes import convert_file_size_to_int
from accel_state.errors import ConfigError


def plan_shards(groups: Iterable[tuple[Sequence[str], int]], *, max_shard_size: int | str) -> list[list[str]]:
    """Return the names that go into each file, in the order given, each as full as the next group allows.

    Args:
        groups: Names that must stay together (they share memory), with the bytes they take in the file.
        max_shard_size: Bytes, or a string such as ``"5GB"``. A group larger than this gets a file of its own.

    Returns:
        At least one list, empty when there is nothing to save.
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
