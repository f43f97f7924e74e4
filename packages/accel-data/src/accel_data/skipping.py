"""Loaders that begin in the middle of an epoch."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from accel_data.loaders.cloning import check_loader
from accel_data.loaders.prepared import PreparedLoader
from accel_data.loaders.skip import SkipDataLoader
from accel_state.errors import ConfigError


def skip_first_batches(dataloader: DataLoader[Any], num_batches: int = 0) -> DataLoader[Any]:
    """Return a loader like ``dataloader`` without the first ``num_batches`` batches of each epoch.

    Map-style data is not read at all up to there. The count is from the start of the epoch, whatever position
    the loader was resumed at. Epochs are counted together with the given loader, which goes on with the next
    one.

    Args:
        dataloader: A prepared loader or any other.
        num_batches: Batches of this rank to leave out.

    Raises:
        ConfigError: If ``num_batches`` is negative, or what is given is no loader.
    """
    if num_batches < 0:
        raise ConfigError(f"`num_batches` must not be negative, got {num_batches}.")
    if isinstance(dataloader, PreparedLoader):
        return dataloader.skipping(num_batches)
    check_loader(dataloader)
    return SkipDataLoader.around(dataloader, skip_batches=num_batches)
