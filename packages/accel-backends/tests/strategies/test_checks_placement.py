from __future__ import annotations

import pytest
import torch
from torch import nn

from accel_backends.strategies.checks import is_spread, model_devices, place_model

META = torch.device("meta")


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(2, 2, bias=False)
        self.other = nn.Linear(2, 2, bias=False)
        self.other.weight = self.one.weight
        self.register_buffer("count", torch.zeros(()))


def test_parameters_and_buffers_are_moved_and_stay_tied():
    model = place_model(Tied(), META)
    assert model_devices(model) == {META}
    assert model.one.weight is model.other.weight


def test_the_same_model_comes_back():
    model = Tied()
    assert place_model(model, torch.device("cpu")) is model


@pytest.mark.parametrize("device_map", [{"one": 0, "other": 1}, {"one": 0, "other": "cpu"}])
def test_a_model_with_a_map_over_several_devices_stays(device_map):
    model = Tied()
    model.hf_device_map = device_map
    assert is_spread(model)
    assert model_devices(place_model(model, META)) == {torch.device("cpu")}


def test_a_map_to_one_device_does_not_hold_a_model_back():
    model = Tied()
    model.hf_device_map = {"": 0}
    assert model_devices(place_model(model, META)) == {META}


def test_a_model_partly_on_the_cpu_is_gathered():
    model = Tied()
    model.count = model.count.to(META)
    assert not is_spread(model)
    assert model_devices(place_model(model, META)) == {META}
