"""Loaders and batch samplers without the first batches of an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, cast

from torch.utils.data import BatchSampler, DataLoader

from accel_data.loaders.torch_loader import (
    DataLoaderAdapter,
    DataLoaderStateMixin,
    Loader,
    batches_field,
    build_loader,
    check_loader,
    clone_loader,
    is_iterable,
)
from accel_data.samplers.batch_shard import BatchSamplerShard, BatchSamplerWrapper
from accel_state.errors import ConfigError


def skip_first_batches(dataloader: Loader, num_batches: int = 0) -> Loader:
    """Return a loader like ``dataloader`` without the first ``num_batches`` batches of each epoch.

    Skipped batches of map-style data are not read. They are counted from the start of the epoch, also after a
    resume. Both loaders count the same epochs.

    Args:
        dataloader: A prepared or an ordinary loader.
        num_batches: Batches of this rank to omit.

    Raises:
        ConfigError: If ``num_batches`` is negative, or ``dataloader`` is not a loader.
    """
    if num_batches < 0:
        raise ConfigError(f"`num_batches` must not be negative, got {num_batches}.")
    if hasattr(dataloader, "skipping"):  # a prepared loader, or one around it
        skipped: Loader = dataloader.skipping(num_batches)
        return skipped
    check_loader(dataloader)
    return cast(Loader, SkipDataLoader.around(dataloader, skip_batches=num_batches))


class SkipDataLoader(DataLoaderAdapter, DataLoaderStateMixin):
    """Omit the first batches of each epoch of an ordinary loader, without reading them from map-style data.

    Args:
        dataset: As for `DataLoader`.
        skip_batches: Batches to omit.
        use_stateful_dataloader: Build on torchdata's `StatefulDataLoader`.
        **kwargs: As for `DataLoader`.
    """

    skip_batches: int
    #: Batches that have to be read to be skipped.
    _num_read_over: int
    _state: dict[str, Any] | None = None

    def __init__(
        self, dataset: Any, skip_batches: int = 0, use_stateful_dataloader: bool = False, **kwargs: Any
    ) -> None:
        base = build_loader(dataset, use_stateful_dataloader, **kwargs)
        self._wrap(base, skip_batches=skip_batches)

    def _wrap(self, base: DataLoader[Any], *, skip_batches: int = 0) -> None:
        field = None if is_iterable(base) else batches_field(base)
        if field is not None:
            base = clone_loader(base, **{field: SkipBatchSampler(getattr(base, field), skip_batches)})
        self.skip_batches = skip_batches
        self._num_read_over = skip_batches if field is None else 0
        self.reset()
        super()._wrap(base)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        reading = self.begin()
        self._state = None
        try:
            nothing = object()
            batches = islice(iter(self.base_dataloader), self._num_read_over, None)
            batch = next(batches, nothing)
            while batch is not nothing:
                if self.use_stateful_dataloader:
                    self._state = super().state_dict()  # the next batch is read ahead
                following = next(batches, nothing)
                self.end_of_dataloader = following is nothing
                self.gradient_state._note_batch(reading)
                yield batch
                batch = following
            self._state = None
        finally:
            self.end()

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch that was yielded, if the inner loader has one."""
        return super().state_dict() if self._state is None else self._state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self._state = None
        super().load_state_dict(state_dict)

    def __len__(self) -> int:
        return max(0, self._base_length() - self._num_read_over)


class SkipBatchSampler(BatchSamplerWrapper):
    """Yield the batches of ``batch_sampler`` without the first ``skip_batches``.

    If a pass can start anywhere in the order, this takes no longer than starting at its first batch.

    Args:
        batch_sampler: Yields lists of indices.
        skip_batches: Batches to omit in each epoch.
    """

    def __init__(self, batch_sampler: BatchSampler | Iterable[list[int]], skip_batches: int = 0) -> None:
        super().__init__(batch_sampler)
        self.skip_batches = skip_batches

    def __len__(self) -> int:
        return max(0, self.total_length - self.skip_batches)

    def __iter__(self) -> Iterator[list[int]]:
        shard = self.batch_sampler
        if not isinstance(shard, BatchSamplerShard):
            shard = BatchSamplerShard(shard, even_batches=False)
        if shard.plan() is None:
            return islice(iter(self.batch_sampler), self.skip_batches, None)
        return iter(shard.new_pass(shard.position_after(self.skip_batches)))
