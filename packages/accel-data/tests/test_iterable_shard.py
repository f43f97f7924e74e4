from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from accel_data import IterableDatasetShard, prepare_data_loader
from accel_state.errors import ConfigError


class Numbers(IterableDataset):
    def __init__(self, size: int) -> None:
        self.size = size
        self.num_read = 0
        self.epoch = -1

    def __iter__(self) -> Iterator[int]:
        for number in range(self.size):
            self.num_read += 1
            yield number

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Sized(Numbers):
    def __len__(self) -> int:
        return self.size


@pytest.mark.parametrize(
    ("split", "expected"), [(False, [[0, 1, 2, 3], [4, 5, 6, 7]]), (True, [[0, 1, 4, 5], [2, 3, 6, 7]])]
)
def test_documented_example(split: bool, expected: list[list[int]]) -> None:
    shards = [IterableDatasetShard(Numbers(8), 4, False, 2, rank, split) for rank in range(2)]
    assert [list(shard) for shard in shards] == expected


@pytest.mark.parametrize("split", [False, True])
def test_every_small_stream(split: bool) -> None:
    for num, size, rows, drop_last, even in product(
        range(1, 5), range(26), (1, 2, 3), (False, True), (False, True)
    ):
        batch_size = rows * num if split else rows
        shards = [
            IterableDatasetShard(Sized(size), batch_size, drop_last, num, rank, split, even_batches=even)
            for rank in range(num)
        ]
        parts = [list(shard) for shard in shards]
        assert [len(shard) for shard in shards] == [len(part) for part in parts]
        full, rest = divmod(size, rows * num)
        stream = [
            sample
            for step in range(full + 1)
            for part in parts
            for sample in part[step * rows : (step + 1) * rows]
        ]
        kept = size - rest if drop_last else size
        assert stream[:kept] == list(range(kept))
        padding = stream[kept:]
        if even and rest and not drop_last:
            assert len({len(part) for part in parts}) == 1
            assert padding == [index % min(size, rows * num) for index in range(len(padding))]
        else:
            assert padding == []


def test_a_batch_that_does_not_divide_cannot_be_split() -> None:
    with pytest.raises(ConfigError, match=r"number of processes \(2\), got 3"):
        IterableDatasetShard(Numbers(8), 3, num_processes=2, split_batches=True)


def test_it_reads_no_further_than_the_step() -> None:
    dataset = Numbers(100)
    next(iter(IterableDatasetShard(dataset, 3, num_processes=2)))
    assert dataset.num_read == 6


def test_the_stream_is_given_the_epoch_and_stays_within_reach() -> None:
    shard = IterableDatasetShard(Numbers(4))
    shard.set_epoch(3)
    assert shard.dataset.epoch == 3  # type: ignore[attr-defined]
    assert shard.size == 4
    assert pickle.loads(pickle.dumps(shard)).size == 4
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = shard.nothing_of_the_kind


def test_ranks_share_the_generator_of_a_stream() -> None:
    class Shuffled(IterableDataset):
        def __init__(self) -> None:
            self.generator = torch.Generator().manual_seed(4)

        def __iter__(self) -> Iterator[int]:
            return iter(torch.randperm(9, generator=self.generator).tolist())

    loader = DataLoader(Shuffled(), batch_size=2)
    prepared = prepare_data_loader(loader, num_processes=2, process_index=0, dispatch_batches=False)
    assert prepared.synchronized_generator is loader.dataset.generator  # type: ignore[attr-defined]


class SelfSharding(Numbers):
    num_shards = 4

    def shard(self, num_shards: int, index: int) -> SelfSharding:
        return SelfSharding(self.size // num_shards)


@pytest.mark.parametrize(("num", "shards_itself"), [(2, True), (4, True), (3, False)])
def test_a_data_set_that_divides_into_equal_parts_shards_itself(num: int, shards_itself: bool) -> None:
    loader = DataLoader(SelfSharding(24), batch_size=2)
    prepared = prepare_data_loader(
        loader, num_processes=num, process_index=0, dispatch_batches=False, even_batches=False
    )
    assert isinstance(prepared.dataset, SelfSharding) == shards_itself


class Range(IterableDataset):
    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.low, self.high))


def take_part(worker: int) -> None:
    """Return the worker's copy of the data set its part, as the documentation of `IterableDataset` does."""
    data: Any = get_worker_info().dataset  # type: ignore[union-attr]
    half = (data.high - data.low) // 2
    data.low, data.high = data.low + worker * half, data.low + (worker + 1) * half


def test_a_worker_init_function_reaches_the_data_set() -> None:
    given = DataLoader(Range(0, 16), batch_size=2, num_workers=2, worker_init_fn=take_part)
    loader = prepare_data_loader(given, num_processes=2, process_index=1, dispatch_batches=False)
    assert [batch.tolist() for batch in loader] == [[2, 3], [10, 11], [6, 7], [14, 15]]
