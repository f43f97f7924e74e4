"""How an `Accelerator` prepares its data loaders."""

from __future__ import annotations

from dataclasses import dataclass

from accel_state.errors import ConfigError
from accel_state.user_warnings import warn_user


@dataclass
class DataLoaderConfiguration:
    """Options for all data loaders of an `Accelerator`.

    Args:
        split_batches: Split each batch of the given loader over the processes, so that its batch size is the
            global one; it must be a multiple of the number of processes. When False each process reads full
            batches, and the global batch is ``batch_size * num_processes``.
        dispatch_batches: Read on the main process only and send each process its part. None: True for an
            `IterableDataset`, False otherwise.
        even_batches: Complete the last global batch with samples from the start of the epoch, so that every
            process sees the same number of equally large batches.
        use_seedable_sampler: Replace a `RandomSampler` by a `SeedableRandomSampler`, whose order depends
            only on the seed and the epoch.
        data_seed: Seed of the seedable sampler. None: the current seed of torch on the main process.
        non_blocking: Copy to the device without waiting. Only useful with ``pin_memory=True``.
        use_stateful_dataloader: Build on `torchdata.stateful_dataloader.StatefulDataLoader`.

    Raises:
        ConfigError: If ``data_seed`` is not an int.
        NotAvailableError: If torchdata is needed and not installed.
    """

    split_batches: bool = False
    dispatch_batches: bool | None = None
    even_batches: bool = True
    use_seedable_sampler: bool = False
    data_seed: int | None = None
    non_blocking: bool = False
    use_stateful_dataloader: bool = False

    def __post_init__(self) -> None:
        if self.use_stateful_dataloader:
            from accel_data.loaders.stateful import stateful_loader_class

            stateful_loader_class()
        if self.data_seed is not None:
            if isinstance(self.data_seed, bool) or not isinstance(self.data_seed, int):
                raise ConfigError(f"`data_seed` must be an int or None, got {self.data_seed!r}.")
            if not self.use_seedable_sampler:
                warn_user(
                    "`data_seed` has no effect without the seedable sampler. "
                    "Pass `use_seedable_sampler=True` as well.",
                )
