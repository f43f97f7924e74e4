"""Optimizers follow the parameters that were replaced."""

import gc

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from accel_backends.fsdp.parameters import ReplacedParameters, like_parameter
from accel_state.errors import ConfigError


def test_groups_and_state_go_to_the_new_parameter():
    old, new, kept = (nn.Parameter(torch.ones(2) * value) for value in (1.0, 2.0, 3.0))
    optimizer = torch.optim.SGD([{"params": [old], "lr": 0.5}, {"params": [kept]}], lr=0.1, momentum=0.9)
    optimizer.state[old]["momentum_buffer"] = torch.tensor([4.0, 5.0])
    parameters = optimizer.param_groups[0]["params"]
    replaced = ReplacedParameters()
    replaced.record([(old, new)])
    replaced.repoint(optimizer)
    assert optimizer.param_groups[0]["params"] is parameters
    assert parameters[0] is new
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.param_groups[1]["params"][0] is kept
    assert old not in optimizer.state
    assert optimizer.state[new]["momentum_buffer"].tolist() == [4.0, 5.0]


def test_a_parameter_that_was_replaced_twice_leads_to_the_last():
    first, second, third = (nn.Parameter(torch.ones(1)) for _ in range(3))
    replaced = ReplacedParameters()
    replaced.record([(first, second)])
    replaced.record([(second, third)])
    assert replaced.newest(first) is third
    assert replaced.newest(third) is third


def test_parameters_without_references_are_forgotten():
    replaced, new = ReplacedParameters(), nn.Parameter(torch.ones(1))
    old = nn.Parameter(torch.ones(1))
    replaced.record([(old, new)])
    assert old in replaced
    assert [id(one) for one in replaced] == [id(old)]
    del old
    gc.collect()
    assert list(replaced) == []


def test_a_model_that_is_gone_is_reported():
    old, replaced = nn.Parameter(torch.ones(3)), ReplacedParameters()
    replaced.record([(old, nn.Parameter(torch.ones(3)))])
    gc.collect()
    with pytest.raises(ConfigError, match=r"shape \(3,\) belonged to is gone"):
        replaced.newest(old)


@pytest.mark.parametrize(
    ("state", "parameter", "expected"),
    [
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float32, torch.bfloat16, torch.float32),
        (torch.int64, torch.float32, torch.int64),
    ],
)
def test_state_is_never_stored_in_fewer_bits(state, parameter, expected):
    value = like_parameter(torch.ones(2, dtype=state), nn.Parameter(torch.ones(2, dtype=parameter)))
    assert value.dtype is expected


def test_state_without_values_is_refused():
    with pytest.raises(ConfigError, match="made from a model without values"):
        like_parameter(torch.ones(2, device="meta"), nn.Parameter(torch.ones(2)))


def states_of_a_shard():
    mesh = init_device_mesh("cpu", (2,))
    parameter = nn.Parameter(distribute_tensor(torch.zeros(5, 2), mesh, [Shard(0)]))
    whole = torch.arange(10.0).reshape(5, 2)
    placed = like_parameter(whole, parameter)
    others = [torch.tensor(3.0), torch.ones(7), "text", placed]
    assert all(like_parameter(one, parameter) is one for one in others)
    return isinstance(placed, DTensor), placed.to_local()


def test_state_of_the_shape_of_its_parameter_is_sharded_like_it(world):
    (is_first, first), (is_second, second) = world(2).run(states_of_a_shard)
    assert is_first
    assert is_second
    assert torch.equal(torch.cat([first, second]), torch.arange(10.0).reshape(5, 2))
