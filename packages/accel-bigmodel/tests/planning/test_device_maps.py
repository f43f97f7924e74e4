from __future__ import annotations

import pytest
from torch import nn

from accel_bigmodel import check_device_map, check_tied_parameters_on_same_device, clean_device_map
from accel_bigmodel.planning.device_maps import device_of
from accel_state.errors import ConfigError

MODEL = nn.ModuleDict(
    {
        name: nn.ModuleDict({"linear1": nn.Linear(1, 1), "linear2": nn.Linear(1, 1)})
        for name in ("block1", "block2")
    }
)


def test_the_nearest_entry_above_a_name_decides():
    device_map = {"": "cpu", "block1": 0, "block1.linear2": "disk"}
    assert device_of("block1.linear1.weight", device_map) == 0
    assert device_of("block1.linear2.weight", device_map) == "disk"
    assert device_of("block10.weight", device_map) == "cpu"
    assert device_of("block10.weight", {"block1": 0}) is None


@pytest.mark.parametrize(
    "device_map",
    [
        {"": 0},
        {"block1": 0, "block2": 1},
        {"block1": 0, "block2.linear1": 0, "block2.linear2.weight": 1, "block2.linear2.bias": 1},
    ],
)
def test_maps_that_cover_the_model_pass(device_map):
    check_device_map(MODEL, device_map)


def test_a_map_with_a_hole_is_refused_by_what_falls_through():
    with pytest.raises(
        ConfigError, match=r"does not cover block2\.linear1\.weight, block2\.linear1\.bias\. Add"
    ):
        check_device_map(MODEL, {"block1": 0, "block2.linear2": 1})


def test_keys_that_are_not_there_are_a_warning_with_the_nearest():
    with pytest.warns(UserWarning, match="`blok2`, `other`. Correct or remove them. Did you mean `block2`"):
        check_device_map(MODEL, {"": 0, "blok2": 1, "other": 1})


def test_parts_on_one_device_become_their_module():
    device_map = {"a.x": 0, "a.y": 0, "b.x": 0, "b.y.p": 1, "b.y.q": 1, "c": "disk"}
    assert clean_device_map(device_map) == {"a": 0, "b.x": 0, "b.y": 1, "c": "disk"}
    assert clean_device_map({"a": 0, "b.c": 0, "b.d": 0}) == {"": 0}
    assert clean_device_map({"a.x": 0, "a.y": 0, "b.x": 1, "b.y": 1}, "b") == {"a.x": 0, "a.y": 0, "b": 1}


def test_ties_over_several_devices_are_reported():
    with pytest.warns(UserWarning, match="`block1.w` on `0`, `block2.w` on `1`"):
        check_tied_parameters_on_same_device([["block1.w", "block2.w"]], {"block1": 0, "block2": 1})
