"""Streams: shared out, resumed, and replayed where nothing better is possible."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from accel_data.iterable_shard import IterableDatasetShard
from accel_data.loaders.cloning import clone_loader
from accel_data.loaders.progress import Resumption
from accel_data.loaders.worker_states import continue_stream
from accel_data.samplers.run import Position
from accel_state.errors import CheckpointError

Reader = Callable[[DataLoader[Any]], DataLoader[Any]]


class SkippedStream(IterableDataset[Any]):
    """What follows the first ``num_samples`` samples of ``dataset``."""

    def __init__(self, dataset: IterableDataset[Any], num_samples: int) -> None:
        self.dataset = dataset
        self.num_samples = num_samples

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.dataset), self.num_samples, None)


def has_state(dataset: Any) -> bool:
    """Tell whether ``dataset`` offers ``state_dict`` and ``load_state_dict``."""
    return hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")


def shard_stream(
    loader: DataLoader[Any],
    *,
    num_processes: int,
    process_index: int,
    split_batches: bool,
    even_batches: bool,
) -> DataLoader[Any]:
    """Return ``loader`` with one rank's share of its stream; what has been shared out already stays as it is.

    A data set that can cut itself (``shard`` and ``num_shards``) is asked to, if the ranks then get equally
    many parts: no rank reads what it does not need. Where such a rank's part ends is not known beforehand.
    """
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDatasetShard):
        return loader
    if shards_itself(loader, num_processes, split_batches=split_batches):
        own = dataset.shard(num_shards=num_processes, index=process_index)
        return clone_loader(loader, dataset=own)
    shard = IterableDatasetShard(
        dataset,
        loader.batch_size or 1,
        loader.drop_last,
        num_processes,
        process_index,
        split_batches,
        even_batches=even_batches,
    )
    return cut_into(clone_loader(loader, dataset=shard), shard.rows_per_rank)


def shards_itself(loader: DataLoader[Any], num_processes: int, *, split_batches: bool) -> bool:
    """Tell whether the data set is asked to cut itself into ``num_processes`` parts."""
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDatasetShard) or split_batches or not hasattr(dataset, "shard"):
        return False
    num_shards: int = getattr(dataset, "num_shards", None) or getattr(dataset, "n_shards", None) or 0
    return num_shards > 0 and num_shards % num_processes == 0


def cut_into(loader: DataLoader[Any], rows: int) -> DataLoader[Any]:
    """Return ``loader`` with batches of ``rows``; without automatic batching it stays as it is."""
    if loader.batch_size is None or loader.batch_size == rows:
        return loader
    batches = BatchSampler(loader.sampler, rows, loader.drop_last)
    return clone_loader(loader, batch_size=rows, batch_sampler=batches)


def skip_samples(loader: DataLoader[Any], num_samples: int) -> DataLoader[Any]:
    """Return a loader of what follows the first ``num_samples`` samples, which are read and thrown away."""
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDatasetShard):
        return clone_loader(loader, dataset=dataset.starting_at(num_samples))
    return clone_loader(loader, dataset=SkippedStream(dataset, num_samples))


def warn_of_replay(what: str) -> None:
    """Say that a stream is read again from its beginning."""
    warnings.warn(
        f"The data set is a stream that cannot be entered in the middle: {what} are read again and thrown "
        "away. Give the data set `state_dict` and `load_state_dict`, or use map-style data, to resume at "
        "once.",
        stacklevel=2,
    )


def stream_of(loader: DataLoader[Any]) -> Any:
    """Return the data set that the user gave, without our shard around it."""
    dataset: Any = loader.dataset
    return dataset.dataset if isinstance(dataset, IterableDatasetShard) else dataset


def open_stream(
    base: DataLoader[Any],
    *,
    skip_steps: int,
    resumption: Resumption | None,
    step_size: Position,
    num_ranks: int,
    is_whole: bool,
    reader: Reader,
) -> tuple[Iterator[Any], Position]:
    """Return the batches of ``base`` from where the pass begins, and that place.

    Args:
        base: Reads this rank's part.
        skip_steps: Steps to leave out, from the start of the epoch.
        resumption: Where to go on instead.
        step_size: What one step of all ranks reads.
        num_ranks: Ranks that share the stream.
        is_whole: Whether ``base`` reads the whole stream, to give the others their parts.
        reader: Returns the loader that really reads for a given one, and keeps notes.

    Raises:
        CheckpointError: If that place cannot be found with this number of ranks or workers.
    """
    if skip_steps:
        start = Position(skip_steps * step_size.samples, skip_steps * step_size.batches)
        return _replay(base, start, step_size, _Ranks(num_ranks, num_ranks, is_whole), reader), start
    if resumption is None or resumption.position == Position():
        return iter(reader(base)), Position()
    start, ranks = resumption.position, _Ranks(num_ranks, resumption.num_ranks, is_whole)
    _check_workers(resumption, base)
    if resumption.is_complete:
        if resumption.dataset_state is not None and base.num_workers == 0:
            stream_of(base).load_state_dict(resumption.dataset_state)
        return iter(()), start
    if resumption.loader_state is not None and hasattr(base, "load_state_dict"):
        ranks.check("a `StatefulDataLoader`")
        stateful: Any = reader(base)
        stateful.load_state_dict(resumption.loader_state)
        return iter(stateful), start
    if resumption.dataset_state is not None and base.num_workers == 0:
        stream_of(base).load_state_dict(resumption.dataset_state)
        return iter(reader(base)), start
    if resumption.stream_workers is not None and not hasattr(base, "load_state_dict"):
        if _is_part(base, ranks):
            ranks.check("a data set that shards itself")
        return continue_stream(reader(base), resumption.stream_workers), start
    return _replay(base, start, step_size, ranks, reader), start


@dataclass(frozen=True, slots=True)
class _Ranks:
    """How many ranks share the stream now, how many did when the state was saved, and whether one reads for
    all.
    """

    now: int
    then: int
    is_whole: bool

    def check(self, what: str) -> None:
        if self.now != self.then and not self.is_whole:
            raise CheckpointError(
                f"The state was saved with {self.then} processes. Resuming {what} with {self.now} is not "
                "possible: each process has a state of its own. Use the same number, or "
                "`dispatch_batches=True`."
            )


def _is_part(base: DataLoader[Any], ranks: _Ranks) -> bool:
    """Tell whether ``base`` reads a part of the stream that the data set itself has cut."""
    return not ranks.is_whole and ranks.now > 1 and not isinstance(base.dataset, IterableDatasetShard)


def _check_workers(resumption: Resumption, base: DataLoader[Any]) -> None:
    """Refuse another number of workers than have read the stream so far: it is them who deal it among each other."""
    then, now = resumption.num_workers, base.num_workers
    if then is not None and max(then, 1) != max(now, 1) and not resumption.is_complete:
        raise CheckpointError(
            f"The stream was read with `num_workers={then}` when the state was saved. Which samples "
            f"`num_workers={now}` would have read by then cannot be known. Use `num_workers={then}`, or begin the "
            "epoch anew with `position=False`."
        )


def _replay(
    base: DataLoader[Any], start: Position, step_size: Position, ranks: _Ranks, reader: Reader
) -> Iterator[Any]:
    """Return the batches of ``base`` from ``start`` on; what comes before is read again and thrown away."""
    if base.num_workers == 0:
        is_part = _is_part(base, ranks)
        if is_part:
            ranks.check("a data set that shards itself")
        num_samples = start.samples // ranks.now if is_part else start.samples
        warn_of_replay(f"{num_samples} samples")
        return iter(reader(skip_samples(base, num_samples)))
    ranks.check("a stream read by workers")
    per_batch = (base.batch_size or 1) if ranks.is_whole else step_size.samples
    num_batches, rest = divmod(start.samples, per_batch)
    if rest:
        raise CheckpointError(
            f"The stream was left after {start.samples} samples, which are no whole number of batches of "
            f"{per_batch}. Resume with the batch size of the saved run, or with `num_workers=0`."
        )
    warn_of_replay(f"{num_batches} batches")
    return islice(iter(reader(base)), num_batches, None)
