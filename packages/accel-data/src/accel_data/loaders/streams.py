"""Streams: sharded, resumed, and replayed where nothing better is possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from accel_data.iterable_shard import IterableDatasetShard
from accel_data.loaders.cloning import clone_loader
from accel_data.loaders.progress import Resumption
from accel_data.loaders.reader import Batches, Reader
from accel_data.loaders.worker_states import resume_stream
from accel_data.samplers.position import START, Position
from accel_state.errors import CheckpointError
from accel_state.user_warnings import warn_user


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
    """Return ``loader`` with one rank's part of its stream; a stream that has been sharded stays as it is.

    A data set that can shard itself (``shard`` and ``num_shards``) is asked to, if the ranks then get the same
    number of shards: no rank reads what it does not need. The length of such a part is unknown.
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
    """Tell whether the data set is asked to shard itself among ``num_processes``."""
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
    """Return a loader that reads the first ``num_samples`` samples and yields those that follow."""
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDatasetShard):
        return clone_loader(loader, dataset=dataset.starting_at(num_samples))
    return clone_loader(loader, dataset=SkippedStream(dataset, num_samples))


def warn_of_replay(what: str) -> None:
    """Warn that a stream is read again from its beginning."""
    warn_user(
        f"The data set is a stream that cannot be entered in the middle: {what} are read again and thrown "
        "away. Give the data set `state_dict` and `load_state_dict` and save with `use_stateful_dataloader=True`, or "
        "use map-style data, to resume at once.",
    )


def stream_of(loader: DataLoader[Any]) -> Any:
    """Return the user's data set, without our shard around it."""
    dataset: Any = loader.dataset
    return dataset.dataset if isinstance(dataset, IterableDatasetShard) else dataset


@dataclass(frozen=True, slots=True)
class StreamOpener:
    """Opens a pass over a stream.

    Args:
        base: Reads this rank's part.
        step_size: What one step of all ranks reads.
        num_ranks: Ranks that share the stream.
        is_whole: Whether ``base`` reads the whole stream, for all ranks.
        reader_for: Returns the reader for a loader.
    """

    base: DataLoader[Any]
    step_size: Position
    num_ranks: int
    is_whole: bool
    reader_for: Callable[[DataLoader[Any]], Reader]

    def open(self, resumption: Resumption | None, *, skip_steps: int) -> tuple[Batches, Position]:
        """Return the batches from where the pass begins, and that position.

        Args:
            resumption: Where to resume.
            skip_steps: Steps to leave out from the start of the epoch; takes precedence.

        Raises:
            CheckpointError: If the position cannot be found with this number of ranks or workers.
        """
        if skip_steps:
            start = Position(skip_steps * self.step_size.samples, skip_steps * self.step_size.batches)
            return self._replay(start, ranks_before=self.num_ranks), start
        if resumption is None or resumption.position == START:
            return self.reader_for(self.base).read(), START
        return self._resume(resumption), resumption.position

    def _resume(self, resumption: Resumption) -> Batches:
        """Return the batches after the position, by the fastest way that the saved states allow."""
        base, ranks_before = self.base, resumption.num_ranks
        self._check_workers(resumption)
        if (
            resumption.loader_state is not None
            and hasattr(base, "load_state_dict")
            and not resumption.is_complete
        ):
            self._check_ranks(ranks_before, "a `StatefulDataLoader`")
            reader = self.reader_for(base)
            stateful: Any = reader.loader
            stateful.load_state_dict(resumption.loader_state)
            return reader.read()
        has_dataset_state = resumption.dataset_state is not None and base.num_workers == 0
        if has_dataset_state:
            stream_of(base).load_state_dict(resumption.dataset_state)
        if resumption.is_complete:
            return iter(())
        if has_dataset_state:
            return self.reader_for(base).read()
        if resumption.stream_workers is not None and not hasattr(base, "load_state_dict"):
            if self._is_part:
                self._check_ranks(ranks_before, "a data set that shards itself")
            return resume_stream(self.reader_for(base), resumption.stream_workers)
        return self._replay(resumption.position, ranks_before=ranks_before)

    def _replay(self, start: Position, *, ranks_before: int) -> Batches:
        """Return the batches after ``start``; what comes before is read again and thrown away."""
        base = self.base
        if base.num_workers == 0:
            num_samples = start.samples
            if self._is_part:
                self._check_ranks(ranks_before, "a data set that shards itself")
                num_samples //= self.num_ranks
            warn_of_replay(f"{num_samples} samples")
            return self.reader_for(skip_samples(base, num_samples)).read()
        self._check_ranks(ranks_before, "a stream read by workers")
        per_batch = (base.batch_size or 1) if self.is_whole else self.step_size.samples
        num_batches, rest = divmod(start.samples, per_batch)
        if rest:
            raise CheckpointError(
                f"The saved position, after {start.samples} samples of the stream, is inside a batch: batches have "
                f"{per_batch} samples. Resume with the batch size of the saved run, or with `num_workers=0`."
            )
        warn_of_replay(f"{num_batches} batches")
        return islice(self.reader_for(base).read(), num_batches, None)

    @property
    def _is_part(self) -> bool:
        """Whether ``base`` reads a part of a stream that shards itself."""
        return (
            not self.is_whole
            and self.num_ranks > 1
            and not isinstance(self.base.dataset, IterableDatasetShard)
        )

    def _check_ranks(self, ranks_before: int, what: str) -> None:
        if self.num_ranks != ranks_before and not self.is_whole:
            raise CheckpointError(
                f"The state was saved with {ranks_before} processes. Resuming {what} with {self.num_ranks} is not "
                "possible: each process has a state of its own. Use the same number, or "
                "`dispatch_batches=True`."
            )

    def _check_workers(self, resumption: Resumption) -> None:
        """Refuse another number of workers than before: the part that each reads depends on it."""
        before, now = resumption.num_workers, self.base.num_workers
        if before is not None and max(before, 1) != max(now, 1) and not resumption.is_complete:
            raise CheckpointError(
                f"The stream was read with `num_workers={before}` when the state was saved. Which samples "
                f"`num_workers={now}` would have read by then cannot be known. Use `num_workers={before}`, or begin "
                "the epoch anew with `position=False`."
            )
