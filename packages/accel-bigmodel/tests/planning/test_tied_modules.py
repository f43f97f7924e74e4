from __future__ import annotations

import pytest
from torch import nn

from accel_bigmodel import (
    compute_module_sizes,
    fallback_allocate,
    get_module_leaves,
    get_module_size_with_ties,
)
from accel_state.errors import ConfigError

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
