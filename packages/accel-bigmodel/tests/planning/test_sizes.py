from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from accel_bigmodel import (
    calculate_maximum_sizes,
    compute_module_sizes,
    compute_module_total_buffer_size,
    fallback_allocate,
    get_max_layer_size,
    get_module_leaves,
    get_module_size_with_ties,
    init_empty_weights,
)
from accel_state.enums import CustomDtype
from accel_state.errors import ConfigError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear1 = nn.Linear(3, 4)  # 12 + 4
        self.batchnorm = nn.BatchNorm1d(4)  # 4 + 4, buffers 4 + 4 float and one int64
        self.linear2 = nn.Linear(4, 5)  # 20 + 5


FLOATS = {"linear1.weight": 12, "linear1.bias": 4, "linear2.weight": 20, "linear2.bias": 5} | {
    f"batchnorm.{name}": 4 for name in ("weight", "bias", "running_mean", "running_var")
}


def expected(bytes_per_float: float) -> dict[str, int]:
    sizes = {name: math.ceil(count * bytes_per_float) for name, count in FLOATS.items()}
    sizes["batchnorm.num_batches_tracked"] = 8
    for module in ("linear1", "batchnorm", "linear2"):
        sizes[module] = sum(size for name, size in sizes.items() if name.startswith(f"{module}."))
    sizes[""] = sum(sizes[module] for module in ("linear1", "batchnorm", "linear2"))
    return sizes


def test_every_tensor_module_and_the_whole_have_their_bytes():
    assert compute_module_sizes(Net()) == expected(4)


def test_an_empty_model_has_the_sizes_of_a_real_one():
    with init_empty_weights(include_buffers=True):
        model = Net()
    assert compute_module_sizes(model) == expected(4)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("float16", 2), (torch.float64, 8), ("torch.bfloat16", 2), (CustomDtype.INT4, 0.5), ("fp8", 1)],
)
def test_dtype_is_what_floats_become_and_integers_keep_their_type(dtype, size):
    assert compute_module_sizes(Net(), dtype=dtype) == expected(size)


def test_special_dtypes_win_over_dtype():
    sizes = compute_module_sizes(
        Net(), "float16", {"linear1.weight": torch.float32, "linear2.bias": CustomDtype.INT4}
    )
    assert (sizes["linear1.weight"], sizes["linear1.bias"], sizes["linear2.bias"]) == (48, 8, 3)
    assert sizes["linear1"] == 56


def test_buffers_only_leaves_parameters_out():
    sizes = compute_module_sizes(Net(), buffers_only=True)
    assert sizes == {
        "": 40, "batchnorm": 40, "batchnorm.running_mean": 16, "batchnorm.running_var": 16,
        "batchnorm.num_batches_tracked": 8,
    }  # fmt: skip
    assert compute_module_total_buffer_size(Net()) == 40
    assert compute_module_total_buffer_size(Net(), "float16") == 24
    assert compute_module_total_buffer_size(nn.Linear(1, 1)) == 0


def test_tied_weights_count_once():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    assert compute_module_sizes(model) == {"": 64, "0": 64, "0.weight": 64}


def test_bools_take_a_byte_and_odd_numbers_of_half_bytes_are_rounded_up():
    module = nn.Module()
    module.register_buffer("mask", torch.zeros(5, dtype=torch.bool))
    module.register_parameter("odd", nn.Parameter(torch.zeros(5)))
    assert compute_module_sizes(module, dtype=CustomDtype.INT4) == {"": 8, "mask": 5, "odd": 3}


def test_the_largest_layers_are_leaves_or_classes_that_are_not_split():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(3, 3), nn.Linear(3, 3))
    sizes, parts = compute_module_sizes(model), list(model.named_children())
    assert get_max_layer_size(parts, sizes, []) == (48, ["1", "2"])
    assert get_max_layer_size(parts, sizes, ["Sequential"]) == (48, ["0", "1", "2"])
    assert get_max_layer_size([], sizes, None) == (0, [])


def test_parameters_next_to_submodules_are_separate_layers():
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.zeros(100))
            self.inner = nn.Linear(2, 2)

    assert calculate_maximum_sizes(Outer()) == (424, (400, ["table"]))
    assert calculate_maximum_sizes(nn.Sequential(Outer(), nn.ReLU())) == (424, (400, ["0.table"]))


def test_a_models_own_no_split_classes_are_respected():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2))
    assert calculate_maximum_sizes(model) == (72, (24, ["0.0", "0.1", "1"]))
    model._no_split_modules = ["Sequential"]
    assert calculate_maximum_sizes(model) == (72, (48, ["0"]))


BLOCKS = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Linear(2, 2)), nn.Linear(3, 3))
SIZES = compute_module_sizes(BLOCKS)


def test_leaves_are_the_names_with_nothing_inside():
    assert get_module_leaves({"": 3, "a": 2, "a.b": 1, "a.c": 1, "ab": 1}) == ["a.b", "a.c", "ab"]


def test_a_tie_adds_the_other_module_without_the_shared_weight():
    size, names, modules = get_module_size_with_ties(["1.weight"], 100, SIZES, list(BLOCKS.named_children()))
    assert (size, names, modules) == (112, ["1"], [BLOCKS[1]])
    with pytest.raises(ConfigError, match="`7.weight` is in none"):
        get_module_size_with_ties(["7.weight"], 100, SIZES, list(BLOCKS.named_children()))


def test_the_first_that_fits_is_taken_and_what_was_around_it_split():
    modules = list(BLOCKS.named_children())
    assert fallback_allocate(modules, SIZES, 50)[0] == "1"
    name, module, left = fallback_allocate(modules, SIZES, 30)
    assert (name, module) == ("0.1", BLOCKS[0][1])
    assert [name for name, _ in left] == ["0.0", "1"]


def test_tied_and_unsplittable_modules_are_passed_over():
    modules = list(BLOCKS.named_children())
    assert fallback_allocate(modules, SIZES, "50B", tied_parameters=[["1.weight", "x"]])[0] == "0.1"
    assert fallback_allocate(modules, SIZES, 30, no_split_module_classes=["Sequential"]) == (
        None,
        None,
        modules,
    )
