from __future__ import annotations

import pytest
import torch
from torch import nn

from accel_bigmodel import (
    align_module_device,
    cpu_offload,
    get_state_dict_from_offload,
    get_state_dict_offloaded_model,
    has_offloaded_params,
)

pytestmark = pytest.mark.usefixtures("execution_memory")


def test_state_dicts_have_values():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    wanted = {name: value.clone() for name, value in model.state_dict().items()}
    cpu_offload(model, "cpu", offload_buffers=True)
    assert has_offloaded_params(model[0])
    assert not has_offloaded_params(nn.Linear(2, 2))
    state = get_state_dict_offloaded_model(model)
    assert list(state) == list(wanted)
    assert all(torch.equal(state[name], value) and not state[name].is_meta for name, value in wanted.items())
    part = get_state_dict_from_offload(model[0], "0.weight", {"0.weight": "", "x": 1})
    assert torch.equal(part["0.weight"], wanted["0.weight"])
    assert part["x"] == 1


def test_weights_can_be_looked_at_and_changed_in_place():
    model = cpu_offload(nn.Sequential(nn.Linear(2, 2, bias=False)), "cpu")
    with align_module_device(model[0]):
        assert type(model[0].weight) is nn.Parameter
        with torch.no_grad():
            model[0].weight.fill_(7)
    assert model[0].weight.is_meta
    with torch.no_grad():
        assert model(torch.ones(1, 2)).sum() == 28


def test_a_resident_module_is_moved_and_moved_back():
    module = nn.Linear(2, 2, device="meta")
    with align_module_device(module, "meta"):
        assert module.weight.is_meta
    module = nn.Linear(2, 2)
    with align_module_device(module):
        assert module.weight.device.type == "cpu"


def test_a_resident_module_keeps_its_parameters_while_it_is_on_another_device():
    module = nn.Linear(2, 2, device="meta")
    weight = module.weight
    with align_module_device(module, "meta"):
        assert module.weight is weight
    module = nn.Linear(2, 2)
    weight = module.weight
    with align_module_device(module, "cpu"), torch.no_grad():
        module.weight.fill_(3)
    assert module.weight is weight
    assert (weight == 3).all()
