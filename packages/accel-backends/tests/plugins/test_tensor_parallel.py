from __future__ import annotations

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from accel_backends import TorchTensorParallelPlugin
from accel_state import PartialState
from accel_state.errors import ConfigError


@pytest.mark.parametrize("size", [1, 0, -2, "2", 2.0, True])
def test_a_size_that_shares_nothing_is_refused(size):
    with pytest.raises(ConfigError, match="`tp_size` must be a whole number of at least 2"):
        TorchTensorParallelPlugin(size)


def with_mesh(axis, size):
    PartialState(cpu=True)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=(axis,))
    return TorchTensorParallelPlugin(size, mesh).tp_size


def test_a_mesh_with_the_axis_is_taken(world):
    assert world(2).run(with_mesh, "tp", 2) == [2, 2]


def test_a_mesh_of_other_axes_is_refused(world):
    with pytest.raises(Exception, match="must have an axis called `tp`, but its axes are: dp"):
        world(2).run(with_mesh, "dp", 2)


def test_a_mesh_of_another_size_is_refused(world):
    with pytest.raises(Exception, match="`tp_size` is 3, but the axis `tp` .* has 2 processes"):
        world(2).run(with_mesh, "tp", 3)
