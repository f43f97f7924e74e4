"""A batch sampler without its first batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from torch.utils.data import BatchSampler

from accel_data.delegation import Delegating
from accel_data.samplers.batch_shard import BatchSamplerShard


class SkipBatchSampler(Delegating, BatchSampler):
    """Yield the batches of ``batch_sampler`` without the first ``skip_batches``.

    Where the order can be entered anywhere, this takes no longer than starting at its beginning.

    Args:
        batch_sampler: Yields lists of indices.
        skip_batches: Batches to leave out in each epoch.
    """

    _wrapped_in = "batch_sampler"

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
        return iter(shard.new_pass(shard.position_after(self.skip_batches)))
