import pytest
import torch
from torch import nn

from accel_backends.strategies.checks import (
    check_parameters,
    check_placement,
    has_device_map,
    unknown_parameters,
)
from accel_state.errors import ConfigError


def test_parameters_of_no_model_are_found_by_place_and_shape():
    model = nn.Linear(2, 1)
    extra = nn.Parameter(torch.zeros(5))
    optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": [extra]}], lr=0.1)
    assert list(unknown_parameters(optimizer, model.parameters())) == [
        "parameter 0 of group 1, of shape (5,)"
    ]
    assert list(unknown_parameters(optimizer, [])) == [
        "parameter 0 of group 0, of shape (1, 2)",
        "parameter 1 of group 0, of shape (1,)",
        "parameter 0 of group 1, of shape (5,)",
    ]


def test_a_long_list_is_shortened():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1)) for _ in range(5)], lr=0.1)
    with pytest.raises(
        ConfigError, match=r"5 of the 5 .* and 2 more\. Their gradients would not be averaged"
    ):
        check_parameters(optimizer, [], num_processes=2)


@pytest.mark.parametrize(
    ("device_map", "expected"),
    [
        ({"": 0}, False),
        ({"a": 0, "b": 0}, False),
        ({"a": 0, "b": 1}, True),
        ({"a": "cpu", "b": "disk"}, True),
    ],
)
def test_a_device_map_counts_if_it_names_several_devices(device_map, expected):
    model = nn.Sequential(nn.Linear(1, 1))
    model[0].hf_device_map = device_map
    assert has_device_map(model) is expected


@pytest.mark.parametrize("places", [{"a": 0, "b": "disk"}, {"a": 0, "b": "cpu"}, {"": "disk"}])
def test_a_quantised_model_that_is_offloaded_cannot_be_trained(places):
    model = nn.Linear(1, 1)
    model.hf_device_map = places
    check_placement(model, num_processes=1, is_bypassed=False)
    model.is_loaded_in_8bit = True
    with pytest.raises(ConfigError, match="is quantised, and its device map offloads"):
        check_placement(model, num_processes=1, is_bypassed=False)
    model.hf_device_map = {"": "cpu"}
    check_placement(model, num_processes=1, is_bypassed=False)


def test_only_several_processes_object_to_a_device_map():
    model = nn.Linear(1, 1)
    model.hf_device_map = {"a": 0, "b": 1}
    check_placement(model, num_processes=1, is_bypassed=False)
    check_placement(model, num_processes=2, is_bypassed=True)
    with pytest.raises(ConfigError, match="`ACCELERATE_BYPASS_DEVICE_MAP=true`"):
        check_placement(model, num_processes=2, is_bypassed=False)
