"""A temporary change of what a loader does with its last step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader

from accel_data.loaders.shard import DataLoaderShard
from accel_state.user_warnings import warn_user


@contextmanager
def override_even_batches(loader: DataLoader[Any], even_batches: bool) -> Iterator[None]:
    """Read ``loader`` with another `even_batches` in the block; warn if the setting has no effect on it."""
    if not isinstance(loader, DataLoaderShard) or not loader.can_set_even_batches:
        warn_user(
            f"`even_batches={even_batches}` has no effect on a prepared {type(loader).__name__}: either the main "
            "process reads for all processes, or the data set shards itself.",
        )
        yield
        return
    before = loader.even_batches
    loader.even_batches = even_batches
    try:
        yield
    finally:
        loader.even_batches = before
