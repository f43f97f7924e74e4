"""The copy of a user's loader through which a prepared loader reads, from any position."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory

from accel_data.delegation import Delegating
from accel_data.iterable_shard import IterableDatasetShard, Marked
from accel_data.loaders.state import Resumption, Source
from accel_data.loaders.stateful import has_position
from accel_data.loaders.torch_loader import clone_loader, from_attributes, mixed_class
from accel_data.loaders.workers import forking_workers
from accel_data.samplers.batch_shard import BatchSamplerShard, IndexSamplerShard, SamplerPass
from accel_data.step import NO_STATES, START, Position, ReadStates, StepShape
from accel_state.errors import CheckpointError
from accel_state.user_warnings import warn_user

Batches = Iterator[tuple[Any, "Fetched | None"]]

#: Attributes that a loader of torch changes while it is read.
_NOT_SETTINGS = frozenset({"_iterator", "_IterableDataset_len_called"})  # torch sets these while it reads


@dataclass(frozen=True, slots=True)
class Fetched:
    """A batch of a stream, as collated, perhaps in a worker.

    Args:
        batch: The batch; None in a step of other ranks only.
        num_samples: Its number of samples; None without automatic batching, 0 without a batch.
        shape: The shape of its step, if the ranks share the stream.
    """

    batch: Any
    num_samples: int | None = None
    shape: StepShape | None = None

    def pin_memory(self, device: Any = None) -> Fetched:
        """Pin the batch; called by torch."""
        return replace(self, batch=pin_memory(self.batch, device))  # type: ignore[no-untyped-call]


class SkippedStream(IterableDataset[Any]):
    """``dataset`` without its first ``num_samples`` samples."""

    def __init__(self, dataset: IterableDataset[Any], num_samples: int) -> None:
        self.dataset = dataset
        self.num_samples = num_samples

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.dataset), self.num_samples, None)


class FetchingCollate:
    """Collate like ``collate``, from samples that may be `Marked`, and return a `Fetched` batch.

    Args:
        collate: The loader's.
        is_batching: Whether ``collate`` makes a batch from a list of samples, not from one value of the data set.
    """

    def __init__(self, collate: Callable[[Any], Any], *, is_batching: bool) -> None:
        self.collate = collate
        self.is_batching = is_batching

    def __call__(self, samples: Any) -> Fetched:
        first = samples[0] if self.is_batching and samples else samples
        num_samples, shape = len(samples) if self.is_batching else None, None
        if isinstance(first, Marked):
            if first.shape is None:
                return Fetched(None, 0)
            shape = first.shape
            samples = [marked.sample for marked in samples] if self.is_batching else first.sample
        return Fetched(self.collate(samples), num_samples, shape)


class Reader:
    """Reads for a prepared loader: its passes start anywhere and describe each batch.

    It reads through a copy of the given loader. The copy is reused from pass to pass while no setting changes, since
    its workers may be persistent. It does not refer to the prepared loader: in a cycle, workers would live until the
    next garbage collection.

    Args:
        source: The data to read.
        num_ranks: Ranks that share a stream.
        rank: This rank among the data ranks.
        reads_all: Whether this rank reads all of the stream, for all ranks.
    """

    def __init__(self, source: Source, *, num_ranks: int = 1, rank: int = 0, reads_all: bool = False) -> None:
        self._source = source
        self._num_ranks = num_ranks
        self._rank = rank
        self._reads_all = reads_all
        self._epoch = 0
        self._made_from: dict[str, Any] = {}
        self._sampler: PassSampler | None = None
        self._latest: Latest | None = None
        #: The copy. Its class derives from the user's, whose iteration may do more than torch's.
        self.loader: DataLoader[Any] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of samplers and data set; end persistent workers, whose copies have the old epoch.

        They are kept if a shared tensor of the data set has the epoch, as in the package `datasets`.
        """
        self._source.set_epoch(epoch)
        dataset, is_new, self._epoch = self._source.dataset, epoch != self._epoch, epoch
        if is_new and hasattr(dataset, "set_epoch") and getattr(self.loader, "persistent_workers", False):
            tensors = [value for value in vars(dataset).values() if isinstance(value, torch.Tensor)]
            if not any(tensor.is_shared() for tensor in tensors):  # type: ignore[no-untyped-call]
                self.loader = None

    def read_indices(self, sampler_pass: SamplerPass, *, state: Any = None) -> Iterator[Any]:
        """Start a pass over map-style data, and return its batches.

        Args:
            sampler_pass: The indices.
            state: The state of a `StatefulDataLoader`, to restore first.
        """
        copied = self._copy_of(self._source.loader, state)
        assert self._sampler is not None, "map-style data has a sampler"
        self._sampler.current = sampler_pass
        return iter(copied)

    def read_stream(self, loader: DataLoader[Any] | None = None, state: Any = None) -> Batches:
        """Start a pass over a stream, and return all batches, each as the loader yields it and as a `Fetched` one.

        The second is None for a batch that the class of the loader has made.

        Args:
            loader: Reads it; None: the loader of the source.
            state: As for `read_indices`.
        """
        copied = self._copy_of(self._source.loader if loader is None else loader, state)
        assert self._latest is not None, "the data set is a stream"
        return self._latest.paired(iter(copied))

    def resume_stream(self, resumption: Resumption, *, rows: int) -> Batches:
        """Return the batches of a stream after a position, by the fastest way that the saved states allow.

        Args:
            resumption: The position.
            rows: Samples of a batch over all ranks.

        Raises:
            CheckpointError: If the position cannot be reached with this number of ranks or workers.
        """
        source, states = self._source, resumption.states
        if resumption.position == START:
            return self.read_stream()
        if not resumption.is_complete:
            self._check_workers(resumption.num_workers)
            if states.loader is not None and source.is_stateful:
                self._check_ranks(resumption.num_ranks, "a `StatefulDataLoader`")
                return self.read_stream(state=states.loader)
        has_dataset_state = states.dataset is not None and source.loader.num_workers == 0
        if has_dataset_state:
            source.dataset.load_state_dict(states.dataset)
        if resumption.is_complete:
            return iter(())
        if has_dataset_state:
            return self.read_stream()
        return self.replay_stream(resumption.position, num_ranks=resumption.num_ranks, rows=rows)

    def replay_stream(self, start: Position, *, num_ranks: int, rows: int) -> Batches:
        """Return the batches of a stream after ``start``; earlier ones are read and discarded, with a warning.

        Args:
            start: The position.
            num_ranks: Ranks that have read up to it.
            rows: As for `resume_stream`.

        Raises:
            CheckpointError: If the position cannot be reached with this number of ranks or workers.
        """
        loader, shard = self._source.loader, self._source.stream_shard
        if loader.num_workers == 0:
            num_samples = start.samples
            if shard is None and not self._reads_all and self._num_ranks > 1:
                self._check_ranks(num_ranks, "a self-sharding data set")
                num_samples //= self._num_ranks
            warn_of_replay(f"{num_samples} samples")
            dataset: Any = loader.dataset
            following = (
                SkippedStream(dataset, num_samples) if shard is None else shard.starting_at(num_samples)
            )
            return self.read_stream(clone_loader(loader, dataset=following))
        self._check_ranks(num_ranks, "a stream read by workers")
        num_batches, rest = divmod(start.samples, rows)
        if rest:
            raise CheckpointError(
                f"The saved position, after {start.samples} samples of the stream, is inside a batch: batches have "
                f"{rows} samples. Resume with the batch size of the saved run, or with `num_workers=0`."
            )
        warn_of_replay(f"{num_batches} batches")
        return islice(self.read_stream(), num_batches, None)

    def states(self, dataset: Any) -> ReadStates:
        """Return the states of data set and loader at the current position.

        torchdata has the states of workers, and of an iterator of the data set.

        Args:
            dataset: The user's data set if its state is kept, else None.
        """
        if self.loader is None:
            return NO_STATES
        has_workers = self.loader.num_workers > 0
        # A copy: the data set may change the objects that its state is made of.
        of_dataset = None if dataset is None or has_workers else copy.deepcopy(dataset.state_dict())
        of_loader = None
        if self._source.is_stateful and (self._latest is not None or (has_workers and dataset is not None)):
            state = self.loader.state_dict()  # type: ignore[attr-defined]
            of_loader = state if has_position(state) else None
        return ReadStates(of_dataset, of_loader)

    def num_missed(self) -> int:
        """Return the number of steps of the last pass with a batch of the stream on other ranks but not on this one."""
        return 0 if self._latest is None else self._latest.num_missed

    def _copy_of(self, loader: DataLoader[Any], state: Any) -> DataLoader[Any]:
        settings = _settings(loader)
        is_same = settings.keys() == self._made_from.keys() and all(
            settings[name] is value for name, value in self._made_from.items()
        )
        if self.loader is None or not is_same:
            self._made_from, self.loader = settings, self._new_copy(loader)
        if state is not None:
            self.loader.load_state_dict(state)  # type: ignore[attr-defined]
        return self.loader

    def _new_copy(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        self._sampler, self._latest = None, Latest() if self._source.is_stream else None
        # Ranks that share a stream read all of it, and a stream may draw its order.
        rank = self._rank if self._source.stream_shard is None else 0
        fields: dict[str, Any] = {"_iterator": None, "_accel_latest": self._latest, "_accel_rank": rank}
        for name in ("batch_sampler", "sampler"):
            shard = getattr(loader, name)
            if isinstance(shard, (BatchSamplerShard, IndexSamplerShard)):
                fields[name] = self._sampler = PassSampler(shard)
        if self._latest is None and hasattr(loader, "snapshot_every_n_steps"):
            # torchdata would also skip indices that the pass has skipped already
            fields["snapshot_every_n_steps"] = 1
        if self._latest is not None:
            fields["collate_fn"] = FetchingCollate(loader.collate_fn, is_batching=loader._auto_collation)
            if isinstance(loader.dataset, IterableDatasetShard):
                fields["dataset"] = loader.dataset.marking()
                if not loader.dataset.even_batches:
                    # torch would warn about a step of other ranks as one batch too many
                    fields["_IterableDataset_len_called"] = None
        return from_attributes(mixed_class(_ReadingLoader, type(loader)), {**loader.__dict__, **fields})

    def _check_ranks(self, ranks_before: int, what: str) -> None:
        if self._num_ranks != ranks_before and not self._reads_all:
            raise CheckpointError(
                f"The state was saved with {ranks_before} processes. Resuming {what} with {self._num_ranks} is not "
                "possible: each process has a separate state. Use the same number, or "
                "`dispatch_batches=True`."
            )

    def _check_workers(self, before: int | None) -> None:
        """Raise for another number of workers than before: it determines the part that each reads."""
        now = self._source.loader.num_workers
        if before is not None and max(before, 1) != max(now, 1):
            raise CheckpointError(
                f"The stream was read with `num_workers={before}` when the state was saved. Which samples "
                f"`num_workers={now}` would have read by then cannot be known. Use `num_workers={before}`, or restart "
                "the epoch with `position=False`."
            )


class PassSampler(Delegating, BatchSampler):
    """Yields the indices of the current pass. Other attributes are read from the sampler that it replaces.

    Torch keeps the sampler as long as its workers, which may be longer than a pass.

    Args:
        shard: The sampler that it replaces.
    """

    _wrapped_in = "shard"

    def __init__(self, shard: BatchSamplerShard | IndexSamplerShard) -> None:
        self.shard = shard
        self.current: SamplerPass | None = None

    def __iter__(self) -> Iterator[Any]:
        assert self.current is not None, "the reader has set a pass"
        batches = iter(self.current)
        return (index for (index,) in batches) if isinstance(self.shard, IndexSamplerShard) else batches

    def __len__(self) -> int:
        return len(self.shard)

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state: the pass has the position, and torchdata restores only its workers."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""


class Latest:
    """The batch of a stream that was fetched last, as a `Fetched` one.

    It is passed next to the batches, since the class of the loader may override the iteration, which then expects plain
    batches.
    """

    def __init__(self) -> None:
        self.fetched: Fetched | None = None
        self.num_missed = 0

    def paired(self, batches: Iterator[Any]) -> Batches:
        """Yield each batch with its `Fetched` one."""
        self.fetched, self.num_missed = None, 0
        for batch in batches:
            yield batch, self.fetched
            self.fetched = None

    def unwrapped(self, batches: Any) -> Any:
        """Return the next plain batch of an iterator of `Fetched` ones, and store the `Fetched` one."""
        fetched = next(batches)
        while isinstance(fetched, Fetched) and fetched.num_samples == 0:
            self.num_missed += 1
            fetched = next(batches)
        if not isinstance(fetched, Fetched):
            return fetched
        self.fetched = fetched
        return fetched.batch


class _ReadingLoader(DataLoader[Any]):
    """The copy that a `Reader` reads through. It adds two attributes to the user's."""

    _accel_latest: Latest | None
    _accel_rank: int

    def _get_iterator(self) -> Any:
        generator = self.generator
        if self.num_workers and self._accel_rank:
            # Torch draws the seed of workers from this generator, which may be in the same state on all ranks:
            # without the rank in the seed, workers of all ranks would augment alike.
            drawn = torch.empty((), dtype=torch.int64).random_(generator=generator)
            self.generator = torch.Generator(drawn.device).manual_seed(int(drawn) + self._accel_rank)
        try:
            with forking_workers() if self.num_workers else nullcontext():
                inner = super()._get_iterator()
        finally:
            self.generator = generator
        return inner if self._accel_latest is None else _PlainBatches(inner, self._accel_latest)


class _PlainBatches(Delegating):
    """An iterator of torch's that returns plain batches instead of `Fetched` ones."""

    _wrapped_in = "_inner"

    def __init__(self, inner: Any, latest: Latest) -> None:
        self._inner = inner
        # Not the loader: in a cycle, workers would live until the next garbage collection.
        self._latest = latest

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._latest.unwrapped(self._inner)


def _settings(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return all settings of reading, including those that may change between epochs."""
    settings = {name: value for name, value in loader.__dict__.items() if name not in _NOT_SETTINGS}
    if isinstance(loader.dataset, IterableDatasetShard):
        settings["even_batches"] = loader.dataset.even_batches
    return settings


def warn_of_replay(what: str) -> None:
    """Warn that a stream is read again from its start."""
    warn_user(
        f"The data set is a stream that cannot be entered in the middle: {what} are read again and thrown "
        "away. Give the data set `state_dict` and `load_state_dict` and save with `use_stateful_dataloader=True`, or "
        "use map-style data, to resume at once.",
    )
