from __future__ import annotations

import pytest

from accel_state.errors import ConfigError
from accel_state.launched_by.torchrun import TorchrunEnvironment
from accel_state.topology import Topology

topology = TorchrunEnvironment().topology


def test_a_world_of_one_needs_no_local_rank():
    assert topology({"RANK": "0", "WORLD_SIZE": "1"}) == Topology(source="torchrun")


def test_without_local_world_size_equal_ranks_mean_one_machine():
    found = topology({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"})
    assert (found.local_world_size, found.num_nodes) == (2, 1)


def test_the_name_that_deepspeed_gives_the_local_size_is_understood():
    found = topology({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"})
    assert (found.local_world_size, found.node_rank, found.num_nodes) == (2, 1, 2)


def test_without_any_local_size_different_ranks_are_an_error():
    with pytest.raises(ConfigError, match="`LOCAL_WORLD_SIZE` is not set, although `RANK`"):
        topology({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"LOCAL_RANK": "2"},
            "`LOCAL_RANK` is `2`, but it must lie between 0 and 1, because `LOCAL_WORLD_SIZE`",
        ),
        (
            {"LOCAL_WORLD_SIZE": "8"},
            r"`LOCAL_WORLD_SIZE` is `8`, but it must not exceed `WORLD_SIZE` \(`4`\)",
        ),
        (
            {"GROUP_RANK": "2", "GROUP_WORLD_SIZE": "2"},
            "`GROUP_RANK` is `2`.*because `GROUP_WORLD_SIZE` is `2`",
        ),
    ],
)
def test_contradicting_values_are_named(changes, message):
    whole = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    with pytest.raises(ConfigError, match=message):
        topology(whole | changes)


def test_blank_variables_count_as_unset():
    assert not TorchrunEnvironment().detect({"RANK": "", "LOCAL_RANK": " "})
