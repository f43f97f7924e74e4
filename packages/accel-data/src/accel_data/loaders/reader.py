"""The loader that reads for a prepared one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from torch.utils.data import BatchSampler, DataLoader

from accel_data.batch_metadata import BatchMetadata, Fetched, MetadataCollate
from accel_data.delegation import Delegating
from accel_data.iterable_shard import IterableDatasetShard
from accel_data.loaders.cloning import from_attributes, mixed_class, replaced_fields
from accel_data.loaders.forking import forking_workers
from accel_data.samplers.batch_shard import BatchSamplerShard
from accel_data.samplers.index_shard import IndexSamplerShard
from accel_data.samplers.sampler_pass import SamplerPass

#: Attributes that a loader of torch changes by itself.
_NOT_SETTINGS = frozenset({"_iterator", "_IterableDataset_len_called"})

Batches = Iterator[tuple[Any, BatchMetadata | None]]


class Reader:
    """Reads for a prepared loader: its passes start anywhere and return metadata with each batch.

    It reads through a copy of the user's loader, which keeps persistent workers from pass to pass.

    Args:
        loader: The loader to copy.
        has_metadata: Whether to return metadata.
        stateful_dataset: Data set whose state is part of the metadata.
    """

    def __init__(self, loader: DataLoader[Any], *, has_metadata: bool, stateful_dataset: Any = None) -> None:
        self._made_from = _settings(loader)
        self._stateful_dataset = stateful_dataset
        self._sampler: PassSampler | None = None
        self._start = _Start(LatestMetadata() if has_metadata else None)
        fields: dict[str, Any] = {"_iterator": None, "_accel_start": self._start}
        for name in ("batch_sampler", "sampler"):
            shard = getattr(loader, name)
            if isinstance(shard, (BatchSamplerShard, IndexSamplerShard)):
                fields[name] = self._sampler = PassSampler(shard)
        if has_metadata:
            fields["collate_fn"] = MetadataCollate(
                loader.collate_fn,
                stateful_dataset,
                is_batching=loader._auto_collation,
                batch_size=loader.batch_size,
            )
            if isinstance(loader.dataset, IterableDatasetShard):
                fields["dataset"] = loader.dataset.marking()
                if not loader.dataset.even_batches:  # torch would count a placeholder as one batch too many
                    fields["_IterableDataset_len_called"] = None
        #: The copy. Its class is also the user's, whose iteration may do more than torch's.
        self.loader: DataLoader[Any] = from_attributes(
            mixed_class(_ReadingLoader, type(loader)), {**loader.__dict__, **fields}
        )

    def is_made_from(
        self, loader: DataLoader[Any], *, has_metadata: bool, stateful_dataset: Any = None
    ) -> bool:
        """Tell whether it still reads like ``loader``, whose attributes may have been set since."""
        mine, wanted = self._made_from, _settings(loader)
        return (
            has_metadata == (self._start.latest is not None)
            and stateful_dataset is self._stateful_dataset
            and mine.keys() == wanted.keys()
            and all(mine[name] is wanted[name] for name in wanted)
        )

    def read(self, sampler_pass: SamplerPass | None = None) -> Batches:
        """Start a pass, and return its batches with their metadata, None where there is none.

        Args:
            sampler_pass: Yields the indices of map-style data.
        """
        if self._sampler is not None:
            self._sampler.current = sampler_pass
        batches, latest = iter(self.loader), self._start.latest
        return zip(batches, repeat(None), strict=False) if latest is None else latest.beside(batches)

    @property
    def num_missed(self) -> int:
        """Steps of the last pass in which other ranks had a batch of the stream, and this one had none."""
        return 0 if self._start.latest is None else self._start.latest.num_missed

    def restart_workers_with(self, **fields: Any) -> None:
        """Start new workers in the next pass, with other fields of the loader for them."""
        self.loader._iterator = None
        self._start.fields = fields


class PassSampler(Delegating, BatchSampler):
    """Hands torch the indices of one pass after the other. Other attributes are those of the sampler it replaces.

    Torch keeps the sampler as long as its workers, which may be longer than a pass.

    Args:
        shard: The sampler that it replaces.
    """

    _wrapped_in = "shard"

    def __init__(self, shard: BatchSamplerShard | IndexSamplerShard) -> None:
        self.shard = shard
        self.current: SamplerPass | None = None

    def __iter__(self) -> Iterator[Any]:
        assert self.current is not None, "the reader is given a pass"
        batches = iter(self.current)
        return (index for (index,) in batches) if isinstance(self.shard, IndexSamplerShard) else batches

    def __len__(self) -> int:
        return len(self.shard)


class LatestMetadata:
    """The metadata of the batch that was fetched last.

    It is passed beside the batches, since the class of the loader may have an iteration of its own, which expects
    plain batches.
    """

    def __init__(self) -> None:
        self.value: BatchMetadata | None = None
        self.num_missed = 0

    def beside(self, batches: Iterator[Any]) -> Batches:
        """Yield each batch with its metadata, None for a batch that came without."""
        self.value, self.num_missed = None, 0
        for batch in batches:
            yield batch, self.value
            self.value = None


@dataclass(slots=True)
class _Start:
    """How iterators of a copied loader are started.

    Args:
        latest: Keeps the metadata of each batch. None: batches have none.
        fields: Fields of the loader while the next iterator, and with it the workers, are started.
    """

    latest: LatestMetadata | None
    fields: dict[str, Any] = field(default_factory=dict)


class _ReadingLoader(DataLoader[Any]):
    """The copy that a `Reader` reads through. It adds one attribute to the user's."""

    _accel_start: _Start

    def _get_iterator(self) -> Any:
        start = self._accel_start
        with (
            replaced_fields(self, **start.fields),
            forking_workers() if self.num_workers else nullcontext(),
        ):
            inner = super()._get_iterator()
        start.fields = {}
        return inner if start.latest is None else _PlainBatches(inner, start.latest)


class _PlainBatches(Delegating):
    """An iterator of torch's that returns plain batches instead of `Fetched` ones, and keeps their metadata."""

    _wrapped_in = "_inner"

    def __init__(self, inner: Any, latest: LatestMetadata) -> None:
        self._inner = inner
        # Not the loader: in a cycle, workers would live until the next garbage collection.
        self._latest = latest

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        fetched = next(self._inner)
        while isinstance(fetched, Fetched) and fetched.metadata.is_placeholder:
            self._latest.num_missed += fetched.metadata.is_last
            fetched = next(self._inner)
        if not isinstance(fetched, Fetched):
            return fetched
        self._latest.value = fetched.metadata
        return fetched.batch


def _settings(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return what decides how ``loader`` reads, including what may be set between epochs."""
    settings = {name: value for name, value in loader.__dict__.items() if name not in _NOT_SETTINGS}
    if isinstance(loader.dataset, IterableDatasetShard):
        settings["even_batches"] = loader.dataset.even_batches
    return settings
