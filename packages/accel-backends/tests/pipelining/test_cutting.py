"""Where models are cut into stages."""

import pytest
from torch import nn

from accel_backends.pipelining.cutting import balanced_firsts, balanced_starts
from accel_state.errors import ConfigError
from tools.harness.models import make_model


@pytest.mark.parametrize(
    ("sizes", "num_stages", "firsts"),
    [
        ([1, 1, 1, 1], 2, [2]),
        ([1, 1, 1, 1], 3, [2, 3]),
        ([1, 1, 1, 1], 4, [1, 2, 3]),
        ([9, 1, 1, 1], 3, [1, 3]),
        ([1, 1, 1, 9], 3, [2, 3]),
        ([5, 1, 1, 5], 2, [2]),
        ([7], 1, []),
    ],
)
def test_the_largest_stage_is_as_small_as_can_be_and_none_is_empty(sizes, num_stages, firsts):
    assert balanced_firsts(sizes, num_stages) == firsts


def test_blocks_that_a_model_repeats_stay_unsharded_and_so_do_named_classes():
    assert balanced_starts(make_model("odd"), 2) == ["blocks.1"]
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), nn.Linear(2, 2))
    assert balanced_starts(model, 3) == ["0.2", "1"]
    whole = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Bilinear(2, 2, 2))
    assert balanced_starts(whole, 2, no_split_module_classes=["Bilinear"]) == ["1"]
    with pytest.raises(ConfigError, match="has 2 parts .* less than the 3 stages"):
        balanced_starts(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), 3)
