"""The script behind the GPU case runs on CPU processes, too."""

import pytest

from tools.bench.sharded_training import TINY, measured


@pytest.mark.parametrize("variant", ["raw", "ours"])
def test_both_variants_train_on_two_ranks(variant):
    assert measured(variant, TINY, num_ranks=2, device_type="cpu") > 0
