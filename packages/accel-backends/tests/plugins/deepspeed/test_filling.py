"""Each key that is filled, what fills it, what contradicts it; no torch, no DeepSpeed."""

import math

import pytest

from accel_backends.plugins.deepspeed.config_tree import value_of
from accel_backends.plugins.deepspeed.filling import Facts, Said, fill, fill_said
from accel_backends.plugins.deepspeed.rules import RULES
from accel_state.errors import ConfigError

BATCHES = {"num_data_ranks": Said(4, "the run"), "micro_batch_sizes": Said((8, 2), "the loaders")}


def nested(key, value):
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


# For each rule: the key, the facts that fill it, the value, and who is named for it.
FILLED = [
    ("zero_optimization.stage", {"zero_stage": Said(3, "the flag")}, 3, "the flag"),
    (
        "zero_optimization.offload_optimizer.device",
        {"offload_optimizer_device": Said("cpu", "the flag")},
        "cpu",
        "the flag",
    ),
    (
        "zero_optimization.offload_optimizer.nvme_path",
        {"offload_optimizer_nvme_path": Said("/a", "x")},
        "/a",
        "x",
    ),
    (
        "zero_optimization.sub_group_size",
        {"offload_optimizer_device": Said("nvme", "x")},
        1,
        "accel: DeepSpeed reads gradients of several parameters from NVMe wrongly",
    ),
    ("zero_optimization.offload_param.device", {"offload_param_device": Said("nvme", "x")}, "nvme", "x"),
    ("zero_optimization.offload_param.nvme_path", {"offload_param_nvme_path": Said("/b", "x")}, "/b", "x"),
    (
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
        {"zero3_save_16bit_model": Said(True, "x")},
        True,
        "x",
    ),
    ("tensor_parallel.autotp_size", {"tp_size": Said(2, "x")}, 2, "x"),
    ("tensor_parallel.autotp_size", {"tp_size": Said(1, "x")}, 1, "x"),
    (
        "tensor_parallel.vocab_parallel_lm_head",
        {"tp_size": Said(2, "x")},
        False,
        "default: logits of the whole vocabulary",
    ),
    ("gradient_accumulation_steps", {"gradient_accumulation_steps": Said(5, "x")}, 5, "x"),
    ("gradient_accumulation_steps", {"gradient_accumulation_steps": Said(1, "x")}, 1, "x"),
    ("gradient_accumulation_steps", {}, 1, "default"),
    ("gradient_clipping", {"gradient_clipping": Said(0.5, "x")}, 0.5, "x"),
    ("gradient_clipping", {"gradient_clipping": Said(0.0, "x")}, 0.0, "x"),
    ("gradient_clipping", {}, 0.0, "default: off"),
    ("train_micro_batch_size_per_gpu", {}, 2, "the loaders"),
    ("train_micro_batch_size_per_gpu", {"is_train_batch_min": False}, 8, "the loaders"),
    (
        "train_batch_size",
        {"gradient_accumulation_steps": Said(3, "x")},
        24,
        "2 (`train_micro_batch_size_per_gpu`) × 3 (`gradient_accumulation_steps`) × 4 (data ranks)",
    ),
    ("fp16.enabled", {"mixed_precision": Said("fp16", "x")}, True, "x"),
    ("fp16.enabled", {"mixed_precision": Said("bf16", "x")}, False, "x"),
    ("fp16.enabled", {}, False, "default"),
    ("bf16.enabled", {"mixed_precision": Said("bf16", "x")}, True, "x"),
    ("bf16.enabled", {"mixed_precision": Said("no", "x")}, False, "x"),
    ("bf16.enabled", {}, False, "default"),
    (
        "zero_optimization.reduce_bucket_size",
        {"hidden_sizes": Said((64, 8), "M")},
        4096,
        "hidden size 64 of M",
    ),
    (
        "zero_optimization.stage3_prefetch_bucket_size",
        {"hidden_sizes": Said((64,), "M")},
        3686,
        "hidden size 64 of M",
    ),
    (
        "zero_optimization.stage3_param_persistence_threshold",
        {"hidden_sizes": Said((64,), "M")},
        640,
        "hidden size 64 of M",
    ),
    ("zero_optimization.stage3_max_live_parameters", {}, 1_000_000_000, "default of DeepSpeed"),
    ("zero_optimization.stage3_max_reuse_distance", {}, 1_000_000_000, "default of DeepSpeed"),
    ("optimizer.params.lr", {"learning_rate": Said(0.01, "x")}, 0.01, "x"),
    ("optimizer.params.weight_decay", {"weight_decay": Said(0.1, "x")}, 0.1, "x"),
    ("optimizer.params.betas", {"betas": Said((0.9, 0.9), "x")}, (0.9, 0.9), "x"),
    ("optimizer.params.eps", {"eps": Said(1e-6, "x")}, 1e-6, "x"),
    ("scheduler.params.warmup_min_lr", {}, 0, "default"),
    ("scheduler.params.warmup_max_lr", {"learning_rate": Said(0.01, "x")}, 0.01, "x"),
    ("scheduler.params.warmup_num_steps", {"warmup_num_steps": Said(10, "x")}, 10, "x"),
    ("scheduler.params.total_num_steps", {"total_num_steps": Said(10, "x")}, 10, "x"),
    (
        "scheduler.params.total_num_steps",
        {"total_num_steps": Said(10, "x"), "num_schedule_ranks": 4},
        3,
        "x, 10 steps by 4 ranks",
    ),
    ("steps_per_print", {}, math.inf, "default: never"),
]
REFUSED = {
    "zero_optimization.stage": ("zero_stage", 3, 2),
    "zero_optimization.offload_optimizer.device": ("offload_optimizer_device", "cpu", "none"),
    "zero_optimization.offload_optimizer.nvme_path": ("offload_optimizer_nvme_path", "/a", "/b"),
    "zero_optimization.offload_param.device": ("offload_param_device", "cpu", "nvme"),
    "zero_optimization.offload_param.nvme_path": ("offload_param_nvme_path", "/a", "/b"),
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": ("zero3_save_16bit_model", True, False),
    "tensor_parallel.autotp_size": ("tp_size", 2, 4),
    "gradient_accumulation_steps": ("gradient_accumulation_steps", 5, 10),
    "gradient_clipping": ("gradient_clipping", 0.5, 1.0),
    "fp16.enabled": ("mixed_precision", "fp16", False),
    "bf16.enabled": ("mixed_precision", "fp16", True),
}
CONFIG_WINS = {
    "train_micro_batch_size_per_gpu": ("micro_batch_sizes", (8, 2), 3),
    "optimizer.params.lr": ("learning_rate", 0.01, 0.02),
    "optimizer.params.weight_decay": ("weight_decay", 0.1, 0.2),
    "optimizer.params.betas": ("betas", (0.9, 0.9), (0.9, 0.8)),
    "optimizer.params.eps": ("eps", 1e-6, 1e-8),
    "scheduler.params.warmup_max_lr": ("learning_rate", 0.01, 0.02),
    "scheduler.params.warmup_num_steps": ("warmup_num_steps", 5, 6),
    "scheduler.params.total_num_steps": ("total_num_steps", 10, 11),
}


@pytest.mark.parametrize(("key", "said", "value", "who"), FILLED)
def test_an_auto_becomes_what_the_run_specifies(key, said, value, who):
    filled = fill(nested(key, "auto"), Facts(**{**BATCHES, **said}))
    assert value_of(filled.config, key) == value
    assert filled.origins[key] == who


def test_every_rule_has_a_row_here():
    assert {rule.key for rule in RULES} == {key for key, *_ in FILLED} | {"fp16.auto_cast"}


@pytest.mark.parametrize(("key", "case"), REFUSED.items())
def test_a_value_that_was_requested_and_contradicts_the_config_is_refused(key, case):
    fact, asked, written = case
    with pytest.raises(ConfigError, match="contradict each other") as refusal:
        fill(nested(key, written), Facts(**BATCHES, **{fact: Said(asked, "`--flag`")}), source="`ds.json`")
    assert f"- `{key}` is " in str(refusal.value)
    assert "by `ds.json`, but " in str(refusal.value)
    assert "by `--flag`." in str(refusal.value)


@pytest.mark.parametrize(("key", "case"), CONFIG_WINS.items())
def test_a_value_of_the_config_holds_against_what_the_script_suggests_and_that_is_reported(key, case):
    fact, asked, written = case
    filled = fill(nested(key, written), Facts(**{**BATCHES, fact: Said(asked, "x")}), source="`ds.json`")
    assert value_of(filled.config, key) == written
    (note,) = filled.notes
    assert note.startswith(f"`{key}` is {written} by `ds.json`, but")


@pytest.mark.parametrize(("key", "case"), {**REFUSED, **CONFIG_WINS}.items())
def test_a_default_contradicts_nothing(key, case):
    fact, asked, written = case
    filled = fill(nested(key, written), Facts(**{**BATCHES, fact: Said(asked, "default", is_default=True)}))
    assert value_of(filled.config, key) == written
    assert filled.notes == ()


@pytest.mark.parametrize("written", [2, 8])
def test_a_batch_size_that_one_of_the_loaders_has_is_no_contradiction(written):
    assert fill({"train_micro_batch_size_per_gpu": written}, Facts(**BATCHES)).notes == ()


def test_all_contradictions_come_in_one_error_with_who_specified_what():
    config = {"zero_optimization": {"stage": 2}, "gradient_clipping": 1.0, "gradient_accumulation_steps": 10}
    said = Facts(
        **BATCHES,
        zero_stage=Said(3, "`--zero_stage`"),
        gradient_clipping=Said(0.5, "`DeepSpeedPlugin(gradient_clipping=0.5)`"),
        gradient_accumulation_steps=Said(4, "`Accelerator(gradient_accumulation_steps=4)`"),
        launcher_fields=("zero3_save_16bit_model",),
    )
    with pytest.raises(ConfigError) as refusal:
        fill(config, said, source="`ds.json`")
    assert str(refusal.value).splitlines() == [
        "The settings of DeepSpeed contradict each other:",
        "- `zero_optimization.stage` is 2 by `ds.json`, but 3 by `--zero_stage`.",
        "- `gradient_accumulation_steps` is 10 by `ds.json`, but 4 by `Accelerator(gradient_accumulation_steps=4)`.",
        "- `gradient_clipping` is 1.0 by `ds.json`, but 0.5 by `DeepSpeedPlugin(gradient_clipping=0.5)`.",
        (
            "- `ds.json` says alone what `deepspeed_config` of the launcher's config file says too: "
            "`zero3_save_16bit_model`. Leave these out there."
        ),
        'Say each value in one place; `"auto"` in the DeepSpeed config takes over what the others say.',
    ]


def test_a_train_batch_size_that_is_not_the_product_is_refused():
    config = {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": 3,
    }
    with pytest.raises(
        ValueError, match=r"`train_batch_size` is 32 by the DeepSpeed config, but 24 by 2 \(`train_mic"
    ):
        fill(config, Facts(**BATCHES))


def test_a_micro_batch_size_that_is_not_set_follows_from_the_others():
    config = {"train_batch_size": 32, "gradient_accumulation_steps": 2}
    filled = fill(config, Facts(num_data_ranks=Said(4, "the run")))
    assert filled.config["train_micro_batch_size_per_gpu"] == 4
    with pytest.raises(
        ConfigError, match="`train_micro_batch_size_per_gpu`: needs a loader with a batch size"
    ):
        fill({**config, "train_micro_batch_size_per_gpu": "auto"}, Facts(num_data_ranks=Said(5, "the run")))


def test_one_step_of_accumulation_is_what_every_run_has_and_contradicts_nothing():
    filled = fill(
        {"gradient_accumulation_steps": 10}, Facts(**BATCHES, gradient_accumulation_steps=Said(1, "x"))
    )
    assert filled.config["gradient_accumulation_steps"] == 10


@pytest.mark.parametrize("precision", ["no", "fp8"])
def test_a_precision_of_the_config_holds_where_no_other_is_requested(precision):
    filled = fill({"bf16": {"enabled": True}}, Facts(**BATCHES, mixed_precision=Said(precision, "x")))
    assert (filled.config["bf16"], filled.config["fp16"]) == ({"enabled": True}, {"enabled": False})


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_autocast_of_the_config_leaves_parameters_in_fp32(precision):
    said = Facts(**BATCHES, mixed_precision=Said(precision, "x"))
    filled = fill({"torch_autocast": {"enabled": True}}, said).config
    assert (filled["bf16"], filled["fp16"]) == ({"enabled": False}, {"enabled": False})
    filled = fill({"torch_autocast": {"enabled": False}}, said).config
    assert filled[precision]["enabled"] is True


def test_fp16_casts_the_inputs_unless_the_config_has_a_value():
    said = Facts(**BATCHES, mixed_precision=Said("fp16", "x"))
    assert fill({}, said).config["fp16"] == {"auto_cast": True, "enabled": True}
    assert fill({"fp16": {"enabled": "auto"}}, said).config["fp16"] == {"enabled": True}


def test_what_the_config_leaves_out_is_written_where_it_matters():
    config = fill({"zero_optimization": {"stage": 2}}, Facts(**BATCHES)).config
    assert config == {
        "zero_optimization": {"stage": 2},
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
        "train_micro_batch_size_per_gpu": 2,
        "train_batch_size": 8,
        "fp16": {"enabled": False},
        "bf16": {"enabled": False},
        "steps_per_print": math.inf,
    }


@pytest.mark.parametrize("written", [{}, {"tensor_parallel": {"autotp_size": 0}}])
def test_layers_that_no_ranks_share_need_no_section(written):
    filled = fill(written, Facts(**BATCHES, tp_size=Said(1, "`ParallelismConfig(tp_size=1)`"))).config
    assert filled.get("tensor_parallel") == written.get("tensor_parallel")


def test_logits_may_be_sharded_where_the_config_requests_it():
    section = {"autotp_size": 2, "vocab_parallel_lm_head": True}
    assert fill({"tensor_parallel": section}, Facts(**BATCHES)).config["tensor_parallel"] == section


def test_what_is_requested_is_written_although_the_config_leaves_it_out():
    said = Facts(
        offload_param_device=Said("cpu", "x"), offload_optimizer_device=Said("none", "default", True)
    )
    assert fill_said({"zero_optimization": {"stage": 3}}, said).config == {
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}
    }


def test_an_auto_that_cannot_be_filled_is_named_with_what_could():
    config = {
        "optimizer": {"type": "auto", "params": {"lr": "auto"}},
        "zero_optimization": {"reduce_bucket_size": "auto"},
    }
    with pytest.raises(ConfigError) as refusal:
        fill(config, Facts(**BATCHES), source="`ds.json`")
    assert str(refusal.value).splitlines() == [
        "Nothing says what `auto` stands for in `ds.json`:",
        "- `optimizer.type`",
        "- `optimizer.params.lr`: needs a `DummyOptim` in `prepare`",
        "- `zero_optimization.reduce_bucket_size`: needs a model whose config has `hidden_size` or `hidden_sizes`",
        "Write the values there.",
    ]
    shown = fill(config, Facts(**BATCHES), must_be_complete=False)
    assert list(shown.unfilled) == [
        "optimizer.type",
        "optimizer.params.lr",
        "zero_optimization.reduce_bucket_size",
    ]


def test_sections_of_deepspeed_with_a_separate_auto_and_unknown_ones_pass_untouched():
    own = {
        "zero_optimization": {
            "stage": 3,
            "zenflow": {"update_interval": "auto"},
            "zero_quantized_weights": True,
        },
        "compression_training": {"weight_quantization": {"shared_parameters": {"enabled": True}}},
        "curriculum_learning": {"enabled": True, "params": {}},
        "data_types": {"keep_in_fp32_modules": "auto"},
    }
    config = fill(own, Facts(**BATCHES)).config
    assert {key: config[key] for key in own} == own


def test_the_config_that_was_given_stays_as_it_is():
    config = {"zero_optimization": {"stage": "auto"}}
    fill(config, Facts(**BATCHES, zero_stage=Said(1, "x")))
    assert config == {"zero_optimization": {"stage": "auto"}}


def test_a_single_setting_fills_no_default():
    config = {"gradient_clipping": "auto", "train_batch_size": "auto", "zero_optimization": {"stage": "auto"}}
    filled = fill_said(config, Facts(zero_stage=Said(2, "default", is_default=True)))
    assert filled.config == {**config, "zero_optimization": {"stage": 2}}
    assert list(filled.unfilled) == ["gradient_clipping", "train_batch_size"]
    assert filled.origins == {"zero_optimization.stage": "default"}


def test_the_origins_of_an_earlier_filling_are_kept():
    first = fill_said({"zero_optimization": {"stage": "auto"}}, Facts(zero_stage=Said(2, "`--zero_stage`")))
    second = fill(first.config, Facts(**BATCHES), origins=first.origins)
    assert second.origins["zero_optimization.stage"] == "`--zero_stage`"
    assert second.origins["train_micro_batch_size_per_gpu"] == "the loaders"


def test_facts_over_others_win_where_they_are_known():
    plugin = Facts(
        zero_stage=Said(2, "plugin"), gradient_clipping=Said(1.0, "plugin"), is_train_batch_min=False
    )
    run = Facts(gradient_clipping=Said(0.5, "run"), num_schedule_ranks=2)
    assert run.over(plugin) == Facts(
        zero_stage=Said(2, "plugin"),
        gradient_clipping=Said(0.5, "run"),
        is_train_batch_min=False,
        num_schedule_ranks=2,
    )
