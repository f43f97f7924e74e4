from __future__ import annotations

import pytest

from accel_backends import TorchTensorParallelPlugin
from accel_state.errors import ConfigError


def test_the_size_is_1_unless_given():
    assert TorchTensorParallelPlugin() == TorchTensorParallelPlugin(1, None)


@pytest.mark.parametrize("size", [0, -2, "2", 2.0, True])
def test_a_size_that_is_no_number_of_processes_is_refused(size):
    with pytest.raises(ConfigError, match="`tp_size` must be a whole number of at least 1"):
        TorchTensorParallelPlugin(size)
