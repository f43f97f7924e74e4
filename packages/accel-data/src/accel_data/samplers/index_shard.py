"""The indices of one rank, for loaders without automatic batching."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch.utils.data import BatchSampler, Sampler

from accel_data.samplers.batch_shard import BatchSamplerShard


class IndexSamplerShard(Sampler[int]):
    """Yield every ``num_processes``-th index of ``sampler``, for loaders with ``batch_size=None``.

    Args:
        sampler: Yields indices.
        num_processes: Ranks that share the indices.
        process_index: The rank of this shard.
        even_batches: Repeat indices from the beginning, so that all ranks get equally many.
    """

    def __init__(
        self, sampler: Iterable[int], *, num_processes: int, process_index: int, even_batches: bool = True
    ) -> None:
        single = BatchSampler(sampler, batch_size=1, drop_last=False)
        self.batch_sampler = BatchSamplerShard(
            single, num_processes, process_index, even_batches=even_batches
        )

    def __iter__(self) -> Iterator[int]:
        return (index for (index,) in iter(self.batch_sampler))

    def __len__(self) -> int:
        return len(self.batch_sampler)
