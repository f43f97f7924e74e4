from __future__ import annotations

import pytest

from accel_checkpoint.saving.model_weights import plan_shards
from accel_state.errors import ConfigError


def plan(sizes: list[int], limit: int | str) -> list[list[int]]:
    groups = [((str(i),), size) for i, size in enumerate(sizes)]
    return [[sizes[int(name)] for name in shard] for shard in plan_shards(groups, max_shard_size=limit)]


def test_shards_follow_the_order_and_not_the_sizes():
    # The example that the documentation of sharding gives.
    assert plan([6, 6, 2, 6, 2, 2], 10) == [[6], [6, 2], [6, 2, 2]]


def test_a_shard_may_be_exactly_full():
    assert plan([5, 5, 1], 10) == [[5, 5], [1]]


def test_what_is_too_large_stands_alone():
    assert plan([1, 20, 1], 10) == [[1], [20], [1]]
    assert plan([20], 10) == [[20]]


def test_nothing_is_one_empty_shard():
    assert plan([], 10) == [[]]


def test_groups_stay_together():
    assert plan_shards([(("a", "b"), 6), (("c",), 6)], max_shard_size="10B") == [["a", "b"], ["c"]]


def test_a_limit_of_zero_is_rejected():
    with pytest.raises(ConfigError, match="must be larger than 0"):
        plan([1], 0)
