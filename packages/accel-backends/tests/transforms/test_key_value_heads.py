"""Which layers ranks compute copies of; that these train right is tested with the Accelerator."""

import pytest
from torch import nn

from accel_backends.transforms.key_value_heads import with_copied_heads
from accel_backends.transforms.tensor_styles import STYLES


def attention(*, num_heads, num_groups):
    module = nn.Module()
    module.head_dim, module.num_key_value_groups = 8, num_groups
    module.query = nn.Linear(32, 8 * num_heads)
    module.key = nn.Linear(32, 8 * num_heads // num_groups)
    return module


@pytest.mark.parametrize(
    ("num_heads", "num_groups", "num_ranks", "is_copied"),
    [
        (8, 4, 4, True),
        (8, 4, 8, True),
        (8, 8, 2, True),
        (8, 4, 2, False),
        (8, 4, 3, False),
        (8, 4, 16, False),
    ],
)
def test_keys_are_copied_where_ranks_have_queries_but_no_separate_head(
    num_heads, num_groups, num_ranks, is_copied
):
    module = attention(num_heads=num_heads, num_groups=num_groups)
    style = STYLES["colwise"]
    found = with_copied_heads(style, module.key, module, num_ranks=num_ranks)
    assert (found.dim is None) == is_copied
    assert with_copied_heads(style, module.query, module, num_ranks=num_ranks) is style
    assert with_copied_heads(style, module.key, nn.Module(), num_ranks=num_ranks) is style
    assert module.num_key_value_groups == num_groups
