"""Whether the last batches are filled up, changed for the length of a block."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader

import accel_data
from accel_state.errors import StateError


@contextmanager
def dealing_evenly(loader: DataLoader[Any], even_batches: bool) -> Iterator[None]:
    """Give `loader` another `even_batches` in the block; warn where nobody deals its batches to the ranks."""
    before = loader.even_batches if isinstance(loader, accel_data.DataLoaderShard) else None
    if before is None or not _set(loader, even_batches):
        warnings.warn(
            f"`even_batches={even_batches}` has no effect on a prepared {type(loader).__name__}, whose batches "
            "are not dealt to the ranks by an index or a stream of their own.",
            stacklevel=6,
        )
        yield
        return
    try:
        yield
    finally:
        _set(loader, before)


def _set(loader: DataLoader[Any], even_batches: bool) -> bool:
    try:
        loader.even_batches = even_batches
    except StateError:
        return False
    return True
