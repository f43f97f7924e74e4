from __future__ import annotations

import pytest

from accel_state.errors import ConfigError
from accel_state.process_environments.plain import PlainEnvironment
from accel_state.topology import Topology


def test_it_is_always_there_and_one_process():
    assert PlainEnvironment().detect({})
    assert PlainEnvironment().topology({"MASTER_ADDR": "head", "MASTER_PORT": "1"}) == Topology()


def test_a_world_size_that_nobody_explains_is_refused():
    with pytest.raises(ConfigError, match="Start the script with `accel launch` or `torchrun`"):
        PlainEnvironment().topology({"WORLD_SIZE": "2"})
