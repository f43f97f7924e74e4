from __future__ import annotations

from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import nn

from accel_backends import AcceleratedOptimizer, move_to_device
from accel_backends.optimizer import place_optimizer_state

Pair = namedtuple("Pair", ["left", "right"])


def test_nested_tensors_are_moved_and_the_rest_stays():
    state = OrderedDict(a=[torch.ones(1), 2], b=(torch.ones(1),), c=Pair(torch.ones(1), "x"), d={"e": None})
    moved = move_to_device(state, "meta")
    assert type(moved) is OrderedDict
    assert [moved["a"][0].device.type, moved["b"][0].device.type, moved["c"].left.device.type] == ["meta"] * 3
    assert (moved["a"][1], moved["c"].right, moved["d"]) == (2, "x", {"e": None})
    assert type(moved["c"]) is Pair
    assert state["a"][0].device.type == "cpu"


def test_state_follows_its_parameter_and_keeps_its_type_and_step_counter():
    weight = nn.Parameter(torch.ones(2, device="meta", dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW([weight])
    optimizer.state[weight] = {
        "step": torch.tensor(3.0),
        "exp_avg": torch.ones(2),
        "buffers": [torch.ones(1)],
    }
    place_optimizer_state(optimizer)
    state = optimizer.state[weight]
    assert (state["exp_avg"].device.type, state["exp_avg"].dtype) == ("meta", torch.float32)
    assert state["buffers"][0].device.type == "meta"
    assert (state["step"].device.type, state["step"].item()) == ("cpu", 3.0)


@pytest.mark.parametrize("option", ["fused", "capturable"])
def test_an_optimizer_that_counts_on_the_device_gets_its_counter_there(option):
    weight = nn.Parameter(torch.ones(2, device="meta"))
    optimizer = torch.optim.AdamW([weight])
    optimizer.param_groups[0][option] = True  # as on a device, which `meta` is none of for torch
    optimizer.state[weight] = {"step": torch.tensor(3.0)}
    place_optimizer_state(optimizer)
    assert optimizer.state[weight]["step"].device.type == "meta"


def test_the_wrapper_moves_state_only_if_it_is_to_place():
    for device_placement, device in ((True, "meta"), (False, "cpu")):
        weight = nn.Parameter(torch.ones(2, device="meta"))
        inner = torch.optim.SGD([weight], lr=0.1)
        inner.state[weight] = {"momentum_buffer": torch.ones(2)}
        AcceleratedOptimizer(inner, device_placement=device_placement)
        assert inner.state[weight]["momentum_buffer"].device.type == device
