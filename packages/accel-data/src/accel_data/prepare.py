"""Prepare an ordinary loader for one rank."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence, Sized
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from accel_data.iterable_shard import IterableDatasetShard
from accel_data.loaders.dispatcher import DataLoaderDispatcher
from accel_data.loaders.prepared import PreparedLoader
from accel_data.loaders.shard import DataLoaderShard
from accel_data.loaders.stateful import to_stateful
from accel_data.loaders.torch_loader import (
    batches_field,
    check_loader,
    clone_loader,
    get_sampler,
    innermost_batch_sampler,
    is_iterable,
    shard_indices,
)
from accel_data.mesh import DataRanks, all_different, data_ranks, ranks_of_run
from accel_data.samplers.order import is_torchdata_shuffle
from accel_data.samplers.seedable import SeedableRandomSampler
from accel_state.enums import RNGType
from accel_state.errors import ConfigError
from accel_state.user_warnings import warn_user


def prepare_data_loader(
    dataloader: DataLoader[Any],
    device: torch.device | None = None,
    num_processes: int | None = None,
    process_index: int | None = None,
    split_batches: bool = False,
    put_on_device: bool = False,
    rng_types: Sequence[str | RNGType] | None = None,
    dispatch_batches: bool | None = None,
    even_batches: bool = True,
    slice_fn_for_dispatch: Callable[..., Any] | None = None,
    use_seedable_sampler: bool = False,
    data_seed: int | None = None,
    non_blocking: bool = False,
    use_stateful_dataloader: bool = False,
    torch_device_mesh: Any = None,
    *,
    keeps_dataset_state: bool = True,
) -> PreparedLoader:
    """Return a loader that yields this process's part of ``dataloader``, which is not changed.

    Args:
        dataloader: The loader. Its class, data set, workers, collation, pinning and generator
            are kept.
        device: The device of the batches. None: the device of `PartialState`.
        num_processes: Processes that share the data. None: the data-parallel ranks of the run, by its
            `ParallelismConfig`. A mesh takes precedence.
        process_index: This process among them. None: its data-parallel rank.
        split_batches: Split each batch into one piece for each process, instead of distributing full batches.
        put_on_device: Move the batches to the device.
        rng_types: Generators to synchronize at the start of each epoch. The generator of the order always is.
        dispatch_batches: Read on the main process only. None: True for an `IterableDataset`.
        even_batches: Complete the last global batch with samples from the start of the epoch.
        slice_fn_for_dispatch: Slices a batch when dispatching, called like `slice_tensors`.
        use_seedable_sampler: Replace a `RandomSampler` by a `SeedableRandomSampler`.
        data_seed: Seed of the seedable sampler. None: torch's current seed on the main process.
        non_blocking: Copy to the device without waiting; needs ``pin_memory=True``.
        use_stateful_dataloader: Build on torchdata's `StatefulDataLoader`.
        torch_device_mesh: Mesh of the run: ranks that differ only on its tensor, context or pipeline axes
            read the same.
        keeps_dataset_state: Copy the state of a data set with `state_dict` after each batch. If not, a resumed
            stream is read again from the start of its epoch up to the position.

    Raises:
        ConfigError: If the parameters contradict each other or the loader.
    """
    if isinstance(dataloader, PreparedLoader):
        return dataloader
    check_loader(dataloader)
    _check_keeps_order(dataloader)
    ranks = _ranks(num_processes, process_index, torch_device_mesh)
    _warn_of_no_batches(dataloader, num_ranks=ranks.num_ranks, split_batches=split_batches)
    if use_stateful_dataloader:
        dataloader = to_stateful(dataloader)
    is_stream = is_iterable(dataloader)
    if use_seedable_sampler and not is_stream:
        dataloader = _with_seedable_sampler(dataloader, data_seed)
    even = even_batches and ranks.num_ranks > 1
    options: dict[str, Any] = {
        "device": _device(device) if put_on_device else None,
        "rng_types": rng_types,
        "non_blocking": non_blocking,
        "ranks": ranks,
        "shares_generator": True,
        "keeps_dataset_state": keeps_dataset_state,
    }
    reads_for_all = is_stream if dispatch_batches is None else dispatch_batches
    if slice_fn_for_dispatch is not None and not reads_for_all:
        warn_user(
            "`slice_fn_for_dispatch` has no effect without `dispatch_batches=True`. "
            "Pass both, or leave the function out.",
        )
    if reads_for_all:
        return DataLoaderDispatcher.around(
            dataloader,
            **options,
            split_batches=split_batches,
            even_batches=even,
            slice_fn=slice_fn_for_dispatch,
        )
    shard = _shard_stream if is_stream else shard_indices
    dataloader = shard(dataloader, ranks, split_batches=split_batches, even_batches=even)
    return DataLoaderShard.around(dataloader, **options)


def _check_keeps_order(loader: DataLoader[Any]) -> None:
    if loader.num_workers > 0 and not getattr(loader, "in_order", True):
        raise ConfigError(
            "`in_order=False` lets the workers return batches in any order, so neither the position in the data "
            "nor the padding of the last batch could be known. Build the `DataLoader` with `in_order=True`."
        )


def _ranks(num_processes: int | None, process_index: int | None, mesh: Any) -> DataRanks:
    if mesh is not None:
        ranks = data_ranks(mesh)
        if num_processes not in (None, ranks.num_ranks) or process_index not in (None, ranks.rank):
            warn_user(
                f"`num_processes={num_processes}` and `process_index={process_index}` have no effect next to "
                f"`torch_device_mesh`, which makes this process {ranks.rank} of {ranks.num_ranks} that read different "
                "data. Leave them out.",
            )
        return ranks
    ranks = ranks_of_run()
    if num_processes is None and process_index is None:
        return ranks
    number = ranks.num_ranks if num_processes is None else num_processes
    index = ranks.rank if process_index is None else process_index
    if not 0 <= index < number:
        raise ConfigError(
            f"`process_index` must be at least 0 and less than `num_processes`, got {index} of {number}."
        )
    return all_different(number, index)


def _warn_of_no_batches(dataloader: DataLoader[Any], *, num_ranks: int, split_batches: bool) -> None:
    """Warn the caller of `prepare_data_loader` if `drop_last` drops everything: nothing would be trained."""
    if not dataloader.drop_last or is_iterable(dataloader) or not isinstance(dataloader.sampler, Sized):
        return
    num_samples, rows = len(dataloader.sampler), dataloader.batch_size or 0
    rows_in_step = rows if split_batches else rows * num_ranks
    if num_samples < rows_in_step:
        warn_user(
            f"A loader has no batch: with `drop_last=True`, a step needs {rows_in_step} samples, and there are "
            f"{num_samples}. Use a smaller `batch_size`, or leave `drop_last` out.",
        )


def _device(device: torch.device | None) -> torch.device:
    if device is not None:
        return device
    from accel_state.partial_state import PartialState

    placed: torch.device = PartialState().device
    return placed


def _with_seedable_sampler(loader: DataLoader[Any], data_seed: int | None) -> DataLoader[Any]:
    """Replace a `RandomSampler` by one whose order depends only on the seed and the epoch."""
    sampler, field = get_sampler(loader), batches_field(loader)
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
    if field is None:
        return clone_loader(loader, sampler=seedable)
    batches = copy.copy(innermost_batch_sampler(getattr(loader, field)))
    batches.sampler = seedable
    return clone_loader(loader, **({"sampler": seedable} | {field: batches}))


def _shard_stream(
    loader: DataLoader[Any], ranks: DataRanks, *, split_batches: bool, even_batches: bool
) -> DataLoader[Any]:
    """Return ``loader`` with one rank's part of its stream; a sharded stream is not changed.

    A self-sharding data set (with ``shard`` and ``num_shards``) is used if all ranks get the same number of
    shards: then no rank reads samples of others. The length of such a part is unknown.
    """
    dataset: Any = loader.dataset
    if len(ranks.of_world) == 1 or isinstance(dataset, IterableDatasetShard):
        return loader
    if not split_batches and _can_shard_itself(dataset, ranks.num_ranks):
        if even_batches:
            warn_user(
                "`even_batches` has no effect on a self-sharding data set (`shard`, `num_shards`): some processes "
                "may get more batches than others. Pass `dispatch_batches=True`, or `even_batches=False` if the "
                "loop supports that.",
            )
        return clone_loader(loader, dataset=dataset.shard(num_shards=ranks.num_ranks, index=ranks.rank))
    shard = IterableDatasetShard(
        dataset,
        loader.batch_size or 1,
        loader.drop_last,
        ranks.num_ranks,
        ranks.rank,
        split_batches,
        even_batches=even_batches,
    )
    rows, fields = shard.rows_per_rank, {}
    if loader.batch_size not in (None, rows):
        fields = {"batch_size": rows, "batch_sampler": BatchSampler(loader.sampler, rows, loader.drop_last)}
    return clone_loader(loader, dataset=shard, **fields)


def _can_shard_itself(dataset: Any, num_ranks: int) -> bool:
    """Whether the data set is self-sharding, evenly over ``num_ranks``."""
    if not hasattr(dataset, "shard"):
        return False
    num_shards: int = getattr(dataset, "num_shards", None) or getattr(dataset, "n_shards", None) or 0
    return num_shards > 0 and num_shards % num_ranks == 0
