"""The process group of an engine that needs one."""

from types import SimpleNamespace

import pytest

from accel_backends.own_group import ensure_group
from accel_state.errors import StateError
from accel_state.topology import Topology


def test_ranks_whose_group_was_destroyed_do_not_wait_for_each_other():
    with pytest.raises(
        StateError, match="of the 2 processes was destroyed, as by `end_training`. Construct another"
    ):
        ensure_group(SimpleNamespace(topology=Topology(world_size=2)))
