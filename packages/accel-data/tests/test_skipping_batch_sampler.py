from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler

from accel_data import BatchSamplerShard, SkipBatchSampler


class Listed:
    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0], [1, 2], [3]])

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize("skipped", [0, 1, 3, 4, 9])
def test_only_the_first_batches_are_missing(skipped: int) -> None:
    def source() -> BatchSampler:
        return BatchSampler(RandomSampler(range(10), generator=torch.Generator().manual_seed(1)), 3, False)

    sampler = SkipBatchSampler(source(), skipped)
    assert len(sampler) == max(0, 4 - skipped)
    assert list(sampler) == list(source())[skipped:]


def test_batches_that_can_only_be_read_in_turn_are_skipped_too() -> None:
    sampler = SkipBatchSampler(Listed(), 2)
    assert list(sampler) == [[3]]
    assert (len(sampler), sampler.total_length) == (1, 3)


def test_a_shard_is_entered_in_the_middle() -> None:
    shard = BatchSamplerShard(BatchSampler(range(13), 2, False), 2, 1)
    expected = list(shard)
    assert list(SkipBatchSampler(shard, 2)) == expected[2:]


def test_skipping_does_not_read_what_it_skips() -> None:
    # Reading this many indices would take years.
    sampler = SkipBatchSampler(BatchSampler(range(10**16), 8, False), 10**15)
    assert list(islice(sampler, 1)) == [[8 * 10**15 + row for row in range(8)]]


def test_attributes_of_the_given_sampler_stay_within_reach() -> None:
    sampler = SkipBatchSampler(BatchSampler(range(4), 2, True), 1)
    assert (sampler.batch_size, sampler.drop_last, sampler.sampler) == (2, True, range(4))
