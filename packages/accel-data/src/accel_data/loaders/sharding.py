"""Loaders with one rank's part of the indices or of the stream."""

from __future__ import annotations

import copy
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler

from accel_data.iterable_shard import IterableDatasetShard
from accel_data.loaders.torch_loader import (
    batches_field,
    clone_loader,
    get_sampler,
    index_shard,
    innermost_batch_sampler,
)
from accel_data.samplers.batch_shard import BatchSamplerShard, IndexSamplerShard
from accel_data.samplers.order import is_torchdata_shuffle
from accel_data.samplers.seedable import SeedableRandomSampler
from accel_state.errors import ConfigError


def with_sampler(loader: DataLoader[Any], sampler: Any) -> DataLoader[Any]:
    """Return a loader like ``loader`` whose indices come from ``sampler``; the given one is not changed."""
    field = batches_field(loader)
    if field is None:
        return clone_loader(loader, sampler=sampler)
    batches = copy.copy(innermost_batch_sampler(getattr(loader, field)))
    batches.sampler = sampler
    return clone_loader(loader, **({"sampler": sampler} | {field: batches}))


def with_seedable_sampler(loader: DataLoader[Any], data_seed: int | None) -> DataLoader[Any]:
    """Replace a `RandomSampler` by one whose order depends on the seed and the epoch alone."""
    sampler = get_sampler(loader)
    is_random = isinstance(sampler, RandomSampler) or is_torchdata_shuffle(sampler)
    if not is_random or isinstance(sampler, SeedableRandomSampler):
        return loader
    seedable = SeedableRandomSampler(
        sampler.data_source,
        replacement=sampler.replacement,
        num_samples=sampler._num_samples,
        generator=sampler.generator,
        data_seed=data_seed,
    )
    return with_sampler(loader, seedable)


def shard_indices(
    loader: DataLoader[Any],
    *,
    num_processes: int,
    process_index: int,
    split_batches: bool,
    even_batches: bool,
) -> DataLoader[Any]:
    """Return ``loader`` with one rank's part of its indices; a loader that has been sharded stays as it is."""
    if index_shard(loader) is not None:
        return loader
    _refuse_distributed_sampler(loader, num_processes)
    field = batches_field(loader)
    if field is None:
        single = IndexSamplerShard(
            loader.sampler,
            num_processes=num_processes,
            process_index=process_index,
            even_batches=even_batches,
        )
        return clone_loader(loader, sampler=single)
    shard = BatchSamplerShard(
        getattr(loader, field), num_processes, process_index, split_batches, even_batches
    )
    return clone_loader(loader, **{field: shard})


def _refuse_distributed_sampler(loader: DataLoader[Any], num_processes: int) -> None:
    sampler = get_sampler(loader)
    if num_processes > 1 and isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
        raise ConfigError(
            f"The sampler is a `DistributedSampler` that yields one part of {sampler.num_replicas} already; "
            f"dividing that part among {num_processes} processes again would lose samples. Use `shuffle=True` "
            "or a plain sampler."
        )


def shard_stream(
    loader: DataLoader[Any],
    *,
    num_processes: int,
    process_index: int,
    split_batches: bool,
    even_batches: bool,
) -> DataLoader[Any]:
    """Return ``loader`` with one rank's part of its stream; a stream that has been sharded stays as it is.

    A data set that can shard itself (``shard`` and ``num_shards``) is asked to, if the ranks then get the same
    number of shards: no rank reads what it does not need. The length of such a part is unknown.
    """
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDatasetShard):
        return loader
    if shards_itself(loader, num_processes, split_batches=split_batches):
        part = dataset.shard(num_shards=num_processes, index=process_index)
        return clone_loader(loader, dataset=part)
    shard = IterableDatasetShard(
        dataset,
        loader.batch_size or 1,
        loader.drop_last,
        num_processes,
        process_index,
        split_batches,
        even_batches=even_batches,
    )
    return with_batches_of(clone_loader(loader, dataset=shard), shard.rows_per_rank)


def shards_itself(loader: DataLoader[Any], num_processes: int, *, split_batches: bool) -> bool:
    """Whether the data set is asked to shard itself among ``num_processes``."""
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDatasetShard) or split_batches or not hasattr(dataset, "shard"):
        return False
    num_shards: int = getattr(dataset, "num_shards", None) or getattr(dataset, "n_shards", None) or 0
    return num_shards > 0 and num_shards % num_processes == 0


def with_batches_of(loader: DataLoader[Any], rows: int) -> DataLoader[Any]:
    """Return ``loader`` with batches of ``rows``; without automatic batching it stays as it is."""
    if loader.batch_size is None or loader.batch_size == rows:
        return loader
    batches = BatchSampler(loader.sampler, rows, loader.drop_last)
    return clone_loader(loader, batch_size=rows, batch_sampler=batches)
