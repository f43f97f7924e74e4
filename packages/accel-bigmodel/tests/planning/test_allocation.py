from __future__ import annotations

import logging
from collections import OrderedDict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from accel_bigmodel import check_device_map, compute_module_sizes, infer_auto_device_map
from accel_bigmodel.planning.allocation import generate_device_map
from accel_bigmodel.planning.device_maps import device_of
from accel_state.errors import ConfigError


class Small(nn.Module):
    """236 bytes: 64, 72 and 100."""

    def __init__(self) -> None:
        super().__init__()
        self.linear1 = nn.Linear(3, 4)
        self.batchnorm = nn.BatchNorm1d(4)
        self.linear2 = nn.Linear(4, 5)


def three(*, ties: tuple[str, ...] = ()) -> nn.Sequential:
    model = nn.Sequential(OrderedDict(layer1=Small(), layer2=Small(), layer3=Small()))
    for name in ties:
        layer, inner = name.split(".")
        getattr(getattr(model, layer), inner).weight = getattr(model.layer1, inner).weight
    return model


def test_the_first_device_keeps_room_for_the_largest_layer():
    wanted = {"linear1": 0, "batchnorm": 1, "linear2": 1}
    assert infer_auto_device_map(Small(), {0: 200, 1: 200}) == wanted
    assert infer_auto_device_map(Small(), {0: 200, 1: 172, 2: 200}) == wanted


def test_without_offload_no_room_is_kept():
    assert infer_auto_device_map(Small(), {0: 236, "cpu": 1000}) == {"": 0}
    assert infer_auto_device_map(Small(), {"cpu": 236}) == {"": "cpu"}


def test_blocks_are_split_between_layers_unless_their_class_forbids_it():
    limits = {0: 500, 1: 500}
    assert infer_auto_device_map(three(), limits) == {
        "layer1": 0, "layer2.linear1": 0, "layer2.batchnorm": 0, "layer2.linear2": 1, "layer3": 1,
    }  # fmt: skip
    wanted = {"layer1": 0, "layer2": 1, "layer3": 1}
    assert infer_auto_device_map(three(), limits, no_split_module_classes=["Small"]) == wanted


def test_dtypes_change_what_fits():
    assert infer_auto_device_map(three(), {0: 360, 1: 500}, dtype=torch.float16)["layer1"] == 0
    full = infer_auto_device_map(Small(), {0: 190, "cpu": 999}, dtype="float16")
    kept = infer_auto_device_map(
        Small(), {0: 150, "cpu": 999}, dtype="float16", special_dtypes={"linear2.weight": "float32"}
    )
    assert full == {"": 0}
    assert kept == {"linear1": 0, "batchnorm": "cpu", "linear2": "cpu"}


def test_what_is_left_goes_to_the_cpu_and_then_to_disk():
    device_map = infer_auto_device_map(three(), {0: 340, "cpu": 340}, clean_result=False)
    assert device_map["layer1.linear1"] == 0
    assert set(device_map.values()) == {0, "cpu", "disk"}
    order = [{0: 0, "cpu": 1, "disk": 2}[device] for device in device_map.values()]
    assert order == sorted(order)


def test_room_is_left_for_the_module_that_runs_and_the_one_that_is_prefetched():
    model = nn.Sequential(*[nn.Linear(10, 10, bias=False) for _ in range(6)])  # of 400 bytes
    device_map = infer_auto_device_map(model, {0: 1800, "cpu": 10**6}, clean_result=False)
    assert list(device_map.values()) == [0, 0, "cpu", "cpu", "cpu", "cpu"]
    blocks = nn.Sequential(
        *[nn.Sequential(*[nn.Linear(10, 10, bias=False) for _ in range(2)]) for _ in range(3)]
    )
    device_map = infer_auto_device_map(blocks, {0: 1800, "cpu": 10**6}, ["Sequential"])
    assert device_map == {"": "cpu"}
    assert infer_auto_device_map(model, {0: 500, "cpu": 10**6}) == {"": "cpu"}  # there is no room for two


def test_a_device_with_room_for_one_module_at_a_time_is_used_and_prefetching_is_warned_of(caplog):
    model = nn.Sequential(*[nn.Linear(10, 10, bias=False) for _ in range(6)])  # of 400 bytes
    device_map = infer_auto_device_map(model, {0: 1000, "cpu": 10**6}, clean_result=False)
    assert "room for one offloaded module" in caplog.text
    assert list(device_map.values()) == [0, *["cpu"] * 5]


def test_a_plan_with_room_to_prefetch_that_does_not_fit_the_model_is_not_taken(caplog):
    model = nn.Sequential(*[nn.Linear(10, 10, bias=False) for _ in range(6)])
    limits = {0: 1500, "cpu": 1600, "disk": 0}  # two are kept and one is loaded, or one and two
    device_map = infer_auto_device_map(model, limits, clean_result=False)
    assert "prefetch=False" in caplog.text
    assert list(device_map.values()) == [0, 0, *["cpu"] * 4]


@pytest.mark.parametrize(
    ("ties", "wanted"),
    [
        (
            ("layer3.linear2",),
            {"layer1": 0, "layer3.linear2": 0, "layer2": 1, "layer3.linear1": 1, "layer3.batchnorm": 1},
        ),
        (
            ("layer2.linear1", "layer2.linear2", "layer3.linear2"),
            {"layer1": 0, "layer2.linear1": 0, "layer2.linear2": 0, "layer3.linear2": 0,
             "layer2.batchnorm": 1, "layer3.linear1": 1, "layer3.batchnorm": 1},
        ),
    ],
)  # fmt: skip
def test_tied_weights_lie_on_one_device(ties, wanted):
    assert infer_auto_device_map(three(ties=ties), {0: 400, 1: 500}) == wanted


def test_a_first_layer_larger_than_the_first_device_is_passed_on_alone():
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(10, 10), nn.Linear(10, 10))
    limits = {0: 2000, 1: 10**6}
    assert infer_auto_device_map(model, limits) == {"0": 1, "1": 0, "2": 0}


def test_a_layer_that_no_accelerator_can_run_is_reported():
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(10, 10))
    with pytest.warns(UserWarning, match=r"layer `0` takes 39\.45 KiB and device `0` has 1\.95 KiB"):
        assert infer_auto_device_map(model, {0: 2000, "cpu": 10**6}) == {"0": "cpu", "1": 0}


def test_fallback_looks_for_parts_that_fit():
    inner = OrderedDict(linear1=nn.Linear(10, 4), linear2=nn.Linear(4, 4), linear3=nn.Linear(4, 8))
    model = nn.Sequential(OrderedDict(module=nn.Sequential(inner)))
    assert infer_auto_device_map(model, {0: 256}) == {"": "disk"}
    found = infer_auto_device_map(model, {0: 256}, fallback_allocation=True)
    assert found == {"module.linear1": "disk", "module.linear2": 0, "module.linear3": "disk"}


def test_no_room_is_an_error_that_explains_how_much_is_missing_where():
    message = (
        r"100 bytes remain, starting with `linear2` \(100 bytes\)\. `cpu` has 64 bytes of 170 bytes in use; "
        r"`disk` has 72 bytes of 80 bytes in use"
    )
    with pytest.raises(ConfigError, match=message):
        infer_auto_device_map(Small(), {"cpu": 170, "disk": 80})
    with pytest.raises(ConfigError, match="names no device"):
        infer_auto_device_map(Small(), {})


def test_buffers_that_stay_behind_without_room_are_reported():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(200, affine=False))
    with pytest.warns(UserWarning, match=r"Buffers of offloaded modules \(1\.57 KiB\) stay on device `0`"):
        infer_auto_device_map(model, {0: 1600, "cpu": 10**6})


def test_verbose_reports_every_decision(caplog):
    with caplog.at_level(logging.INFO):
        infer_auto_device_map(Small(), {0: 200, 1: 200}, verbose=True)
    assert "`linear1` (64 bytes) goes to `0`" in caplog.text
    assert "`batchnorm` (72 bytes) does not fit on `0`" in caplog.text


@settings(max_examples=60, deadline=None)
@given(
    widths=st.lists(st.integers(1, 12), min_size=2, max_size=9),
    limits=st.lists(st.integers(0, 2500), min_size=1, max_size=3),
    fallback=st.booleans(),
    tie=st.booleans(),
)
@pytest.mark.filterwarnings("ignore")
def test_every_map_covers_the_model_and_exceeds_no_limit(widths, limits, fallback, tie):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for width in widths])
    if tie and widths[0] == widths[-1]:
        model[-1][0].weight = model[0][0].weight
    max_memory = {**dict(enumerate(limits)), "cpu": 1500}
    device_map = infer_auto_device_map(model, max_memory, fallback_allocation=fallback)
    check_device_map(model, device_map)
    sizes = compute_module_sizes(model)
    for device, limit in max_memory.items():
        names = [name for name, _ in model.named_parameters() if device_of(name, device_map) == device]
        assert sum(sizes[name] for name in names) <= limit
    if tie and widths[0] == widths[-1]:
        assert device_of("0.0.weight", device_map) == device_of(f"{len(widths) - 1}.0.weight", device_map)


def test_a_device_that_nothing_fits_on_is_logged(caplog):
    with caplog.at_level("INFO"), pytest.warns(UserWarning, match="cannot be loaded there to run"):
        infer_auto_device_map(nn.Sequential(nn.Linear(10, 10)), {0: 100, "cpu": 10**6})
    assert "No part of the model fits on device `0` (100 bytes): insufficient memory." in caplog.text


def test_buffers_of_offloaded_layers_need_room_next_to_the_largest_of_them():
    layers = [nn.Linear(10, 10) for _ in range(2)]  # 440 bytes each
    for layer in layers:
        layer.register_buffer("scale", torch.zeros(5))  # 20 bytes
    model = nn.Sequential(nn.Linear(5, 9), *layers)  # the first one has 216 bytes
    with pytest.warns(UserWarning, match="Buffers of offloaded modules .* the largest offloaded layer"):
        infer_auto_device_map(model, {0: 690, "cpu": 10**6})


def test_a_generated_map_has_a_part_for_each_process():
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
    assert set(generate_device_map(model, 3).values()) == {0, 1, 2}
