"""Passes over streams: from the start, from a saved state, or replayed where nothing better is possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from accel_data.iterable_shard import IterableDatasetShard
from accel_data.loaders.reader import Fetched, Reader
from accel_data.loaders.state import Resumption
from accel_data.loaders.torch_loader import Source, clone_loader
from accel_data.step import START, Position
from accel_state.errors import CheckpointError
from accel_state.user_warnings import warn_user

Batches = Iterator[tuple[Any, Fetched | None]]


class SkippedStream(IterableDataset[Any]):
    """What follows the first ``num_samples`` samples of ``dataset``."""

    def __init__(self, dataset: IterableDataset[Any], num_samples: int) -> None:
        self.dataset = dataset
        self.num_samples = num_samples

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.dataset), self.num_samples, None)


@dataclass(frozen=True, slots=True)
class StreamOpener:
    """Opens a pass over a stream.

    Args:
        source: What to read.
        step_size: What one step of all ranks reads.
        num_ranks: Ranks that share the stream.
        reads_all: Whether this rank reads the whole stream, for all ranks.
        reader: Reads it.
    """

    source: Source
    step_size: Position
    num_ranks: int
    reads_all: bool
    reader: Reader

    def from_start(self) -> Batches:
        """Return all batches."""
        return self.reader.read_stream(self.source.loader)

    def resumed(self, resumption: Resumption) -> Batches:
        """Return the batches after a position, by the fastest way that the saved states allow.

        Raises:
            CheckpointError: If the position cannot be found with this number of ranks or workers.
        """
        base, states = self.source.loader, resumption.states
        if resumption.position == START:
            return self.from_start()
        if not resumption.is_complete:
            self._check_workers(resumption.num_workers)
            if states.loader is not None and self.source.is_stateful:
                self._check_ranks(resumption.num_ranks, "a `StatefulDataLoader`")
                return self.reader.read_stream(base, state=states.loader)
        has_dataset_state = states.dataset is not None and base.num_workers == 0
        if has_dataset_state:
            self.source.dataset.load_state_dict(states.dataset)
        if resumption.is_complete:
            return iter(())
        if has_dataset_state:
            return self.from_start()
        return self.replayed(resumption.position, ranks_before=resumption.num_ranks)

    def replayed(self, start: Position, *, ranks_before: int) -> Batches:
        """Return the batches after ``start``; those before are read again and discarded, with a warning.

        Args:
            start: The position.
            ranks_before: Ranks that have read up to it.
        """
        base = self.source.loader
        if base.num_workers == 0:
            num_samples = start.samples
            if self._is_part:
                self._check_ranks(ranks_before, "a data set that shards itself")
                num_samples //= self.num_ranks
            warn_of_replay(f"{num_samples} samples")
            return self.reader.read_stream(_skip_samples(base, num_samples))
        self._check_ranks(ranks_before, "a stream read by workers")
        per_batch = (base.batch_size or 1) if self.reads_all else self.step_size.samples
        num_batches, rest = divmod(start.samples, per_batch)
        if rest:
            raise CheckpointError(
                f"The saved position, after {start.samples} samples of the stream, is inside a batch: batches have "
                f"{per_batch} samples. Resume with the batch size of the saved run, or with `num_workers=0`."
            )
        warn_of_replay(f"{num_batches} batches")
        return islice(self.from_start(), num_batches, None)

    @property
    def _is_part(self) -> bool:
        """Whether this rank reads a part of a stream that shards itself."""
        return not self.reads_all and self.num_ranks > 1 and self.source.stream_shard is None

    def _check_ranks(self, ranks_before: int, what: str) -> None:
        if self.num_ranks != ranks_before and not self.reads_all:
            raise CheckpointError(
                f"The state was saved with {ranks_before} processes. Resuming {what} with {self.num_ranks} is not "
                "possible: each process has a state of its own. Use the same number, or "
                "`dispatch_batches=True`."
            )

    def _check_workers(self, before: int | None) -> None:
        """Raise for another number of workers than before: the part that each reads depends on it."""
        now = self.source.loader.num_workers
        if before is not None and max(before, 1) != max(now, 1):
            raise CheckpointError(
                f"The stream was read with `num_workers={before}` when the state was saved. Which samples "
                f"`num_workers={now}` would have read by then cannot be known. Use `num_workers={before}`, or restart "
                "the epoch with `position=False`."
            )


def warn_of_replay(what: str) -> None:
    """Warn that a stream is read again from its beginning."""
    warn_user(
        f"The data set is a stream that cannot be entered in the middle: {what} are read again and thrown "
        "away. Give the data set `state_dict` and `load_state_dict` and save with `use_stateful_dataloader=True`, or "
        "use map-style data, to resume at once.",
    )


def _skip_samples(loader: DataLoader[Any], num_samples: int) -> DataLoader[Any]:
    """Return a loader that reads the first ``num_samples`` samples and yields those that follow."""
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDatasetShard):
        return clone_loader(loader, dataset=dataset.starting_at(num_samples))
    return clone_loader(loader, dataset=SkippedStream(dataset, num_samples))
