"""Loaders with one rank's part of the indices."""

from __future__ import annotations

import copy
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

from accel_data.loaders.cloning import clone_loader
from accel_data.loaders.epochs import batches_field, get_sampler, innermost_batch_sampler
from accel_data.samplers import torchdata
from accel_data.samplers.batch_shard import BatchSamplerShard
from accel_data.samplers.index_shard import IndexSamplerShard
from accel_data.samplers.seedable import SeedableRandomSampler
from accel_state.errors import ConfigError


def is_iterable(loader: DataLoader[Any]) -> bool:
    """Tell whether ``loader`` reads a stream, without indices."""
    return bool(loader._dataset_kind == 1)


def index_shard(loader: DataLoader[Any]) -> BatchSamplerShard | None:
    """Return the shard that gives ``loader`` its indices, None if it has none."""
    for source in (loader.batch_sampler, loader.sampler):
        if isinstance(source, BatchSamplerShard):
            return source
        if isinstance(source, IndexSamplerShard):
            return source.batch_sampler
    return None


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
    is_random = isinstance(sampler, RandomSampler) or torchdata.shuffles(sampler)
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
