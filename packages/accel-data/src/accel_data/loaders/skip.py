"""An ordinary loader without its first batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

from accel_data.loaders.adapter import DataLoaderAdapter, build_loader
from accel_data.loaders.cloning import clone_loader
from accel_data.loaders.epochs import batches_field
from accel_data.loaders.sharding import is_iterable
from accel_data.loaders.state_mixin import DataLoaderStateMixin
from accel_data.samplers.skip import SkipBatchSampler


class SkipDataLoader(DataLoaderAdapter, DataLoaderStateMixin):
    """Leave out the first batches of each epoch of an ordinary loader, without reading them from map-style data.

    Args:
        dataset: As for `DataLoader`.
        skip_batches: Batches to leave out.
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
        self.begin()
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
                yield batch
                batch = following
            self._state = None
        finally:
            self.end()

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch that was yielded, where the inner loader has one."""
        return super().state_dict() if self._state is None else self._state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self._state = None
        super().load_state_dict(state_dict)

    def __len__(self) -> int:
        return max(0, len(self.base_dataloader) - self._num_read_over)
