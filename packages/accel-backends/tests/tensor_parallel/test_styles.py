import pytest
from torch import nn

from accel_backends.tensor_parallel.styles import STYLES, check_heads
from accel_state.errors import ConfigError


@pytest.mark.parametrize(
    ("style", "layer", "num_ranks", "part"),
    [
        (
            "colwise",
            nn.Linear(4, 50),
            4,
            "4 does not divide its 50 outputs. .* does: 1, 2, 5, 10, 25, 50; or",
        ),
        (
            "rowwise",
            nn.Linear(33, 4),
            2,
            "2 does not divide its 33 inputs.*`rowwise_split_input`, which cuts any",
        ),
        (
            "packed_qkv_colwise",
            nn.Linear(4, 18),
            4,
            "4 does not divide its 3 times 6 outputs.* does: 1, 2, 3, 6; or",
        ),
        ("rowwise", nn.Embedding(4, 4), 2, "cuts `torch.nn.Linear`, but is a `Embedding`"),
        ("embedding_rowwise", nn.LayerNorm(4), 2, "cuts `torch.nn.Embedding`, but is a `LayerNorm`"),
    ],
)
def test_a_layer_that_cannot_be_sharded_is_refused_with_what_would_work(style, layer, num_ranks, part):
    with pytest.raises(ConfigError, match=f"`blocks.0.up` has the style `{style}`.*{part}"):
        STYLES[style].check(style, "blocks.0.up", layer, num_ranks=num_ranks)


@pytest.mark.parametrize("style", ["colwise_gather_output", "rowwise_split_input"])
def test_some_styles_shard_any_size(style):
    STYLES[style].check(style, "head", nn.Linear(33, 33), num_ranks=2)


def test_ranks_need_as_many_heads_each():
    attention = nn.Module()
    attention.head_dim = 8
    keys = nn.Linear(32, 16)
    check_heads("layers.0.k", keys, attention, num_ranks=2)
    with pytest.raises(
        ConfigError, match="`layers.0.k` computes 2 heads of 8 values, which 4 ranks.* divides 2: 1, 2"
    ):
        check_heads("layers.0.k", keys, attention, num_ranks=4)
    check_heads("layers.0.k", keys, nn.Module(), num_ranks=4)
    with pytest.raises(ConfigError, match="computes 1 heads"):
        check_heads("layers.0.kv", keys, attention, num_ranks=2, num_blocks=2)
