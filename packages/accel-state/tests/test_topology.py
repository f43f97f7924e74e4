from __future__ import annotations

import dataclasses

import pytest

from accel_state.errors import ConfigError
from accel_state.topology import Topology, is_set, optional_int, required_int


def test_without_arguments_it_is_a_single_plain_process():
    assert dataclasses.astuple(Topology()) == (0, 1, 0, 1, 0, 1, "plain", None, None, False)


def test_it_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Topology().rank = 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"rank": 2, "world_size": 2},
            "`rank` is `2`, but it must lie between 0 and 1, because `world_size` is `2`",
        ),
        ({"rank": -1}, "`rank` is `-1`, but it must lie between 0 and 0"),
        ({"local_rank": 1, "world_size": 2}, "`local_rank` is `1`, but it must lie between 0 and 0"),
        ({"node_rank": 1}, "`node_rank` is `1`, but it must lie between 0 and 0"),
        ({"world_size": 0}, "`world_size` is `0`, but it must be at least 1"),
        ({"local_world_size": 2}, r"`local_world_size` must not exceed 1 \(`world_size`\), got 2"),
    ],
)
def test_contradicting_values_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        Topology(**values)


def test_blank_counts_as_unset():
    assert not is_set({"A": "  "}, "A")
    assert not is_set({}, "A")
    assert optional_int({"A": ""}, "A") is None
    assert optional_int({"A": " 3 "}, "A") == 3


def test_a_missing_number_names_who_requested_it_and_what_to_do():
    with pytest.raises(ConfigError) as caught:
        required_int({"RANK": "0"}, "WORLD_SIZE", launcher="torchrun", because="RANK")
    assert str(caught.value) == (
        "`WORLD_SIZE` is not set, although `RANK` is. torchrun sets both; set the missing one, or unset "
        "`RANK` to run a single process."
    )
