"""Batches from the middle of an epoch on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler

from accel_data.samplers.batch_shard import BatchSamplerShard


class SkipBatchSampler(BatchSampler):
    """Yield the batches of ``batch_sampler`` without the first ``skip_batches``.

    Where the order can be entered anywhere this takes no longer than beginning at its start.

    Args:
        batch_sampler: Yields lists of indices.
        skip_batches: Batches to leave out in each epoch.
    """

    def __init__(self, batch_sampler: BatchSampler | Iterable[list[int]], skip_batches: int = 0) -> None:
        self.batch_sampler = batch_sampler
        self.skip_batches = skip_batches

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        """Batch size of the given sampler, None if it has none."""
        return getattr(self.batch_sampler, "batch_size", None)

    @property
    def drop_last(self) -> bool:  # type: ignore[override]
        """Whether the given sampler leaves out a short last batch."""
        return bool(getattr(self.batch_sampler, "drop_last", False))

    @property
    def total_length(self) -> int:
        """Batches of the given sampler."""
        return len(self.batch_sampler)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return max(0, self.total_length - self.skip_batches)

    def __iter__(self) -> Iterator[list[int]]:
        shard = self.batch_sampler
        if not isinstance(shard, BatchSamplerShard):
            shard = BatchSamplerShard(shard, even_batches=False)
        if not shard.can_start_anywhere:
            return islice(iter(self.batch_sampler), self.skip_batches, None)
        shard.begin_run(shard.position_after(self.skip_batches))
        return iter(shard)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "batch_sampler" not in self.__dict__:
            raise AttributeError(
                f"`{type(self).__name__}` object has no attribute `{name}`.", name=name, obj=self
            )
        return getattr(self.batch_sampler, name)
