from __future__ import annotations

import pytest

from accel_state.environment import find_setting
from accel_state.errors import ConfigError
from accel_state.fsdp_versions import RESHARDS, resharding_of, reshards, state_dict_type_of, strategy_of


def test_every_strategy_of_the_settings_is_known():
    assert {*RESHARDS, "NO_SHARD"} == set(find_setting("fsdp_sharding_strategy").choices)


@pytest.mark.parametrize(("strategy", "expected"), [("FULL_SHARD", True), ("SHARD_GRAD_OP", False)])
def test_strategies_without_copies_are_one_setting(strategy, expected):
    assert reshards(strategy) is expected


@pytest.mark.parametrize(
    ("strategy", "expected"), [("HYBRID_SHARD", "true"), ("HYBRID_SHARD_ZERO2", "false")]
)
def test_hybrid_strategies_are_refused_with_the_mesh_that_replaces_them(strategy, expected):
    with pytest.raises(
        ConfigError,
        match=rf"`reshard_after_forward` to {expected}, .*`dp_replicate_size` to the number of machines",
    ):
        reshards(strategy)


def test_not_to_shard_is_refused():
    with pytest.raises(ConfigError, match="`NO_SHARD` is not one of its strategies"):
        reshards("NO_SHARD")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, None, "FULL_SHARD"),
        ("NO_SHARD", None, "NO_SHARD"),
        (None, "NO_SHARD", "NO_SHARD"),
        ("NO_SHARD", "NO_SHARD", "NO_SHARD"),
    ],
)
def test_version_1_looks_at_both_names(old, new, expected):
    assert strategy_of(old, new, is_from_launcher=False) == expected
    assert strategy_of(old, new, is_from_launcher=True) == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [("FULL_SHARD", "HYBRID_SHARD", "HYBRID_SHARD"), ("NO_SHARD", True, "NO_SHARD")],
)
def test_version_1_overlooks_what_a_launcher_sets_without_effect(old, new, expected):
    assert strategy_of(old, new, is_from_launcher=True) == expected
    with pytest.raises(ConfigError):
        strategy_of(old, new, is_from_launcher=False)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("NO_SHARD", "FULL_SHARD", "are one setting"),
        (
            None,
            False,
            "is False, which is for `fsdp_version=2`. With version 1 it must be one of: FULL_SHARD",
        ),
    ],
)
def test_version_1_refuses_what_contradicts_itself_or_is_not_for_it(old, new, message):
    with pytest.raises(ConfigError, match=message):
        strategy_of(old, new, is_from_launcher=True)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, None, True),
        (None, False, False),
        ("SHARD_GRAD_OP", None, False),
        (None, "SHARD_GRAD_OP", False),
        ("SHARD_GRAD_OP", False, False),
    ],
)
def test_version_2_takes_strategies_for_what_they_specify(old, new, expected):
    assert resharding_of(old, new, is_from_launcher=False) is expected
    assert resharding_of(old, new, is_from_launcher=True) is expected


def test_version_2_goes_by_its_own_name_where_a_launcher_sets_both():
    assert resharding_of("HYBRID_SHARD", False, is_from_launcher=True) is False
    with pytest.raises(ConfigError, match="contradict each other"):
        resharding_of("FULL_SHARD", False, is_from_launcher=False)


def test_each_version_has_its_way_to_write_checkpoints():
    assert state_dict_type_of(1, None) == "FULL_STATE_DICT"
    assert state_dict_type_of(2, None) == "SHARDED_STATE_DICT"
    assert state_dict_type_of(2, "FULL_STATE_DICT") == "FULL_STATE_DICT"
    for version in (1, 2):
        with pytest.raises(ConfigError, match="Use `SHARDED_STATE_DICT` or `FULL_STATE_DICT`"):
            state_dict_type_of(version, "LOCAL_STATE_DICT")
