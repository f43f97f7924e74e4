"""An ordinary loader without its first batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Self

from torch.utils.data import BatchSampler, DataLoader

from accel_data.loaders.adapter import DataLoaderAdapter
from accel_data.loaders.cloning import clone_loader
from accel_data.loaders.sharding import is_iterable
from accel_data.loaders.state_mixin import DataLoaderStateMixin
from accel_data.samplers.skip import SkipBatchSampler


class SkipDataLoader(DataLoaderAdapter, DataLoaderStateMixin):
    """Leave out the first batches of each epoch of an ordinary loader. Map-style data is not read up to
    there.

    Args:
        dataset: As for `DataLoader`.
        skip_batches: Batches to leave out.
        use_stateful_dataloader: Build on torchdata's `StatefulDataLoader`.
        **kwargs: As for `DataLoader`.
    """

    skip_batches: int
    #: Batches that have to be read to be skipped.
    _num_read_over: int

    def __init__(
        self, dataset: Any, skip_batches: int = 0, use_stateful_dataloader: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(dataset, use_stateful_dataloader=use_stateful_dataloader, **kwargs)
        self._skip(skip_batches)

    @classmethod
    def skipping(cls, loader: DataLoader[Any], skip_batches: int) -> Self:
        """Return ``loader`` without its first batches."""
        skipping = cls._around(loader)
        skipping._skip(skip_batches)
        return skipping

    def _skip(self, skip_batches: int) -> None:
        base = self.base_dataloader
        field = None
        if not is_iterable(base):
            if base.batch_sampler is not None:
                field = "batch_sampler"
            elif isinstance(base.sampler, BatchSampler):
                field = "sampler"
        if field is not None:
            base = clone_loader(base, **{field: SkipBatchSampler(getattr(base, field), skip_batches)})
        self.__dict__.update(
            base_dataloader=base,
            skip_batches=skip_batches,
            _num_read_over=0 if field is not None else skip_batches,
        )
        self.reset()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self.begin()
        try:
            nothing = object()
            batches = islice(iter(self.base_dataloader), self._num_read_over, None)
            batch = next(batches, nothing)
            while batch is not nothing:
                following = next(batches, nothing)
                self.end_of_dataloader = following is nothing
                yield batch
                batch = following
        finally:
            self.end()

    def __len__(self) -> int:
        return max(0, len(self.base_dataloader) - self._num_read_over)
