"""The script behind the GPU case runs on CPU processes, too."""

import pytest

from tools.bench.sharded_training import TINY, measured


@pytest.mark.parametrize(("variant", "num_ranks"), [("raw", 1), ("ours", 2)])
def test_both_variants_train(variant, num_ranks):
    assert measured(variant, TINY, num_ranks=num_ranks, device_type="cpu") > 0
