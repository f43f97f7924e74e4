from __future__ import annotations

import pytest

from accel_state.errors import ConfigError
from accel_state.layout_rules import ModelSizes, broken_rules, check_layout
from accel_state.mesh_layout import MeshLayout

LLAMA = ModelSizes(num_heads=32, num_key_value_heads=8, num_blocks=12, sequence_length=4096)


@pytest.mark.parametrize(
    ("sizes", "num_processes"),
    [
        ({}, 1),
        ({"dp_shard": 512}, 512),
        ({"dp_replicate": 4, "dp_shard": 8}, 32),
        ({"dp_replicate": 2, "dp_shard": 2, "cp": 2, "tp": 8}, 64),
        ({"pp": 12, "tp": 8, "sp": 8}, 768),
        ({"pp": 4, "dp_shard": 128, "tp": 8}, 4096),
    ],
)
def test_layouts_that_there_can_be(sizes, num_processes):
    assert broken_rules(MeshLayout(**sizes), num_processes=num_processes, model=LLAMA) == []


@pytest.mark.parametrize(
    ("sizes", "num_processes", "message"),
    [
        (
            {"dp_shard": 2, "tp": 4},
            16,
            ("for 8 processes, but there are 16. Make the product of the sizes 16, with `dp_replicate_size=2` or "
            "`dp_shard_size=4` or `tp_size=8`."),
        ),
        ({"tp": 8}, 12, "for 8 processes, but there are 12. Make the product of the sizes 12, with `tp_size=12`."),
        ({"dp_shard": 3}, 8, "Make the product of the sizes 8, with `dp_shard_size=8`."),
        ({"cp": 2, "sp": 2}, 4, "`cp_size` (2) and `sp_size` (2) are two ways to shard a sequence."),
        ({"dp_replicate": 2, "tp": 2}, 4, "cannot be combined with unsharded replicas (`dp_replicate_size` 2, "),
        ({"tp": 3}, 3, "`tp_size` 3 does not divide the 32 attention heads. Choose one that does: 1, 2, 4, 8, 16, 32."),
        ({"sp": 64}, 64, "`sp_size` 64 does not divide the 32 attention heads."),
        ({"cp": 3}, 3, "`cp_size` 3 does not divide the 4096 tokens of a sequence."),
        ({"pp": 16}, 16, "`pp_size` 16 needs as many blocks, but the model has 12. Choose at most 12 stages."),
    ],
)  # fmt: skip
def test_a_broken_rule_names_what_would_work(sizes, num_processes, message):
    broken = broken_rules(MeshLayout(**sizes), num_processes=num_processes, model=LLAMA)
    assert message in broken[0]


def test_experts_are_distributed_alike():
    moe = ModelSizes(num_experts=6)
    assert broken_rules(MeshLayout(dp_shard=12, ep=3), model=moe) == []
    [broken] = broken_rules(MeshLayout(dp_shard=12, ep=4), model=moe)
    assert broken == "`ep_size` 4 does not divide the 6 experts. Choose one that does: 1, 2, 3, 6."


def test_key_value_heads_are_divided_or_repeated():
    model = ModelSizes(num_heads=24, num_key_value_heads=8)
    assert broken_rules(MeshLayout(sp=24), model=model) == []
    assert broken_rules(MeshLayout(tp=24), model=model) == []
    assert broken_rules(MeshLayout(tp=12), model=model) == [
        (
            "`tp_size` 12 neither divides the 8 key-value heads nor is a multiple of them. Choose one of 1, 2, 4, 8, "
            "or a multiple of 8."
        )
    ]


def test_what_is_unknown_limits_nothing():
    assert broken_rules(MeshLayout(tp=7, pp=5, ep=7), model=ModelSizes()) == []


def test_all_broken_rules_are_reported():
    with pytest.raises(ConfigError, match=r"two ways to shard .* there are 5\. .* does not divide the 32"):
        check_layout(MeshLayout(cp=2, sp=2, tp=3), num_processes=5, model=LLAMA)
