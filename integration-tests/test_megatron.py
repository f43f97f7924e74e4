"""Megatron-LM must divide a model as its layout specifies, and train it as plain PyTorch does in one process."""

from __future__ import annotations

import math

import megatron_rows
import pytest
from documented import DOCS, blocks

from accel_state.enums import DistributedType
from accel_state.errors import CheckpointError

pytestmark = pytest.mark.engine("megatron")


@pytest.mark.parametrize("settings", [{"tp_degree": 2, "pp_degree": 2}, {"tp_degree": 2}, {"pp_degree": 2}])
def test_the_groups_of_megatron_are_those_of_the_layout(world, settings):
    for found, kind in world(4).run(megatron_rows.groups, settings):
        assert found == [True, True, True]
        assert kind == DistributedType.MEGATRON_LM


@pytest.mark.parametrize(
    ("settings", "num_micro_batches"),
    [
        ({}, 1),
        ({"tp_degree": 2}, 2),
        ({"pp_degree": 2}, 4),
        ({"use_distributed_optimizer": True}, 2),
        ({"pp_degree": 2, "num_layers_per_virtual_pipeline_stage": 1}, 4),
        ({"calculate_per_token_loss": True}, 2),
    ],
)
def test_two_ranks_train_as_one_process_of_plain_pytorch(world, settings, num_micro_batches):
    settings = {**settings, "num_micro_batches": num_micro_batches}
    expected = megatron_rows.plain()
    for losses, norm, num_rows in world(2).run(megatron_rows.trained, settings):
        assert losses == pytest.approx(expected, abs=2e-4)
        assert norm > 0
        assert num_rows == megatron_rows.NUM_ROWS


@pytest.mark.parametrize(("settings", "limit"), [({}, 0.05), ({"tp_degree": 2}, 0.05), ({}, math.inf)])
def test_gradients_are_clipped_by_the_norm_of_all(world, settings, limit):
    """With SGD, whose steps a wrong norm makes longer or shorter; the plugin alone would clip at 1."""
    expected = megatron_rows.plain(megatron_rows.sgd, limit)
    assert expected[-1] != pytest.approx(megatron_rows.plain(megatron_rows.sgd, 1.0)[-1], abs=1e-3)
    for losses in world(2).run(megatron_rows.clipped, settings, limit):
        assert losses == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("is_distributed", [False, True])
def test_a_checkpoint_continues_in_another_layout(world, tmp_path, is_distributed):
    """The optimizer's state goes along: without it the second epoch has other losses."""
    kept, settings = str(tmp_path / "kept"), {"use_distributed_optimizer": is_distributed}
    first, _ = world(2).run(megatron_rows.trained, {**settings, "pp_degree": 2}, kept)
    expected, _ = world(2).run(megatron_rows.trained, {**settings, "pp_degree": 2}, None, kept)
    for later in ({"tp_degree": 2}, {}):
        for losses, *_ in world(2).run(megatron_rows.trained, {**settings, **later}, None, kept):
            assert losses == pytest.approx(expected[0], abs=2e-4)
            assert losses[0] < first[0][0]


def test_states_of_another_kind_of_optimizer_are_refused(world, tmp_path):
    world(1).run(megatron_rows.trained, {}, str(tmp_path / "kept"))
    with pytest.raises(CheckpointError, match="saved without `use_distributed_optimizer`"):
        world(1).run(megatron_rows.trained, {"use_distributed_optimizer": True}, None, str(tmp_path / "kept"))


def test_the_learning_rate_follows_the_schedule(world):
    for rates in world(1).run(megatron_rows.scheduled):
        assert rates == pytest.approx([5e-4, 1e-3, 5e-4, 0])


@pytest.mark.parametrize("settings", [{"tp_degree": 2}, {"pp_degree": 2}])
def test_generated_tokens_are_those_of_transformers(world, settings):
    for found, expected in world(2).run(megatron_rows.generated, settings):
        assert found[0] == expected[0]
        assert found[1] == expected[1]


@pytest.mark.parametrize(("num_micro_batches", "sizes"), [(1, [2, 2, 2, 2]), (2, [4, 4])])
def test_tp_ranks_read_the_same_rows(world, num_micro_batches, sizes):
    settings = {"tp_degree": 2, "num_micro_batches": num_micro_batches}
    (first, num_rows), second, third, _ = world(4).run(megatron_rows.dealt, settings)
    assert second == (first, num_rows)
    assert [len(rows) for rows in first] == sizes
    assert sorted(number for rows in first + third[0] for number in rows) == list(range(16))
    assert num_rows == 4 * num_micro_batches


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("gpt2", {"tp_degree": 2}, {"decoder.layers.0.self_attention.linear_qkv.weight": (48, 32)}),
        ("llama", {"pp_degree": 2}, {"decoder.layers.1.mlp.linear_fc1.weight": (128, 32)}),
        ("llama", {"tp_degree": 2}, {"decoder.layers.3.mlp.linear_fc1.weight": (64, 32)}),
        ("bert", {"tp_degree": 2}, {"encoder.layers.1.mlp.linear_fc2.weight": (32, 32)}),
        ("t5", {"tp_degree": 2}, {"decoder.layers.1.cross_attention.linear_kv.weight": (32, 32)}),
        ("glm4_moe", {"expert_model_parallel_size": 2}, {"decoder.layers.1.mlp.router.weight": (4, 32)}),
    ],
)
def test_each_rank_has_its_part_of_the_model(world, name, settings, expected):
    for found in world(2).run(megatron_rows.shapes, name, settings):
        assert {key: found[key] for key in expected} == expected


def test_without_cuda_nothing_is_trained(world):
    assert world(1).run(megatron_rows.refused) == [
        ["Megatron-LM computes on CUDA devices only, and torch finds none here."] * 2
    ]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("two models", "one model with one optimizer"),
        ("another scheduler", "cannot move the learning rate"),
        ("another optimizer", "no optimizer like RMSprop"),
        ("unknown argument", "no argument `tensor_parallel`"),
        ("another loss", "got another loss"),
        ("no step", "second batch for training"),
        ("padding before", "hides tokens before others"),
        ("no labels", "needs `labels`"),
        ("get_state_dict", "megatron-core's own"),
        ("sequence parallelism", "needs layers of Transformer Engine"),
        ("compiled", "`dynamo_backend`"),
        ("clip by value", "clip_grad_value_"),
    ],
)
def test_what_megatron_cannot_do_is_refused(world, what, message):
    ((found,),) = [world(1).run(megatron_rows.misused, what)]
    assert message in found


def test_the_code_of_the_guide_runs(world):
    texts = [block.text for block in blocks(DOCS / "scale" / "megatron.md", "python")]
    assert len(texts) == 2
    assert all(map(math.isfinite, world(4).run(megatron_rows.run_blocks, texts)))


def test_values_that_a_model_has_are_not_ignored_in_silence(world):
    [warned] = world(1).run(megatron_rows.warnings_of_prepare, "cpu")
    told = "random values, so those of this `GPT2LMHeadModel` are unused. Load a checkpoint of Megatron-LM by"
    assert [told in one for one in warned].count(True) == 1
    [warned] = world(1).run(megatron_rows.warnings_of_prepare, "meta")
    assert not any("are unused" in one for one in warned)
