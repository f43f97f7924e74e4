from __future__ import annotations

import pytest

from accel_state.environment import find_setting
from accel_state.errors import ConfigError
from accel_state.sharding_strategies import RESHARDS, reshards


def test_every_strategy_of_the_settings_is_known():
    assert {*RESHARDS, "NO_SHARD"} == set(find_setting("fsdp_sharding_strategy").choices)


@pytest.mark.parametrize(("strategy", "expected"), [("FULL_SHARD", True), ("SHARD_GRAD_OP", False)])
def test_strategies_without_copies_are_one_setting(strategy, expected):
    assert reshards(strategy) is expected


@pytest.mark.parametrize(("strategy", "expected"), [("HYBRID_SHARD", True), ("HYBRID_SHARD_ZERO2", False)])
def test_hybrid_strategies_are_refused_with_the_mesh_that_replaces_them(strategy, expected):
    with pytest.raises(
        ConfigError, match=rf"reshard_after_forward={expected}.*dp_replicate_size=<number of machines>"
    ):
        reshards(strategy)


def test_not_to_shard_is_refused():
    with pytest.raises(ConfigError, match="`NO_SHARD` is not one of its strategies"):
        reshards("NO_SHARD")
