"""Loaders that start in the middle of an epoch."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch.utils.data import DataLoader

from accel_data.loaders.cloning import check_loader
from accel_data.loaders.skip import SkipDataLoader
from accel_state.errors import ConfigError


@runtime_checkable
class Skipping(Protocol):
    """A loader that can return itself without its first batches: a prepared one, or what is around one."""

    def skipping(self, num_batches: int) -> Any:
        """Return a loader without the first ``num_batches`` batches of each epoch."""


def skip_first_batches(dataloader: DataLoader[Any], num_batches: int = 0) -> DataLoader[Any]:
    """Return a loader like ``dataloader`` without the first ``num_batches`` batches of each epoch.

    Skipped batches of map-style data are not read. They are counted from the start of the epoch, whatever
    position the loader was resumed at. Both loaders count the same epochs.

    Args:
        dataloader: A prepared or an ordinary loader.
        num_batches: Batches of this rank to leave out.

    Raises:
        ConfigError: If ``num_batches`` is negative, or ``dataloader`` is not a loader.
    """
    if num_batches < 0:
        raise ConfigError(f"`num_batches` must not be negative, got {num_batches}.")
    if isinstance(dataloader, Skipping):
        skipped: DataLoader[Any] = dataloader.skipping(num_batches)
        return skipped
    check_loader(dataloader)
    return SkipDataLoader.around(dataloader, skip_batches=num_batches)
