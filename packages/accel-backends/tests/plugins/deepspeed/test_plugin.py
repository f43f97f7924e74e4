import json
import math
import warnings

import pytest
import torch

from accel_backends import DeepSpeedPlugin, HfDeepSpeedConfig, get_active_deepspeed_plugin
from accel_backends.plugins.deepspeed.filling import Facts, Said
from accel_state import AcceleratorState
from accel_state.environment.settings import SECTIONS, SETTINGS
from accel_state.errors import ConfigError, StateError
from accel_state.mesh_layout import MeshLayout
from accel_state.topology import Topology

FOUR = Topology(world_size=4, local_world_size=4)
BATCHES = Facts(num_data_ranks=Said(2, "the run"), micro_batch_sizes=Said((4,), "the loaders"))


@pytest.fixture(autouse=True)
def nothing_is_said(monkeypatch):
    for setting in (*SECTIONS["DeepSpeed"], SETTINGS["gradient_accumulation_steps"]):
        monkeypatch.delenv(setting.variable, raising=False)


def test_without_a_config_one_is_made_of_the_arguments():
    plugin = DeepSpeedPlugin(
        zero_stage=3,
        gradient_accumulation_steps=4,
        gradient_clipping=0.5,
        offload_optimizer_device="nvme",
        offload_optimizer_nvme_path="/fast",
        offload_param_device="cpu",
        zero3_save_16bit_model=True,
    )
    assert plugin.deepspeed_config == {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 0.5,
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "nvme", "nvme_path": "/fast"},
            "sub_group_size": 1,
            "offload_param": {"device": "cpu"},
            "stage3_gather_16bit_weights_on_model_save": True,
        },
    }
    assert plugin.strategy == "deepspeed"
    assert plugin.config is plugin.deepspeed_config is plugin.hf_ds_config.config


def test_defaults():
    plugin = DeepSpeedPlugin()
    assert plugin.zero_stage == 2
    assert (plugin.gradient_accumulation_steps, plugin.gradient_clipping) == ("auto", "auto")
    assert (plugin.offload_optimizer_device, plugin.offload_param_device) == ("none", "none")
    assert (plugin.zero3_init_flag, plugin.zero3_save_16bit_model) == (False, False)
    filled = plugin.fill(BATCHES)
    assert (filled.config["gradient_clipping"], filled.config["train_batch_size"]) == (0.0, 8)
    assert filled.config["steps_per_print"] == math.inf


def test_a_filled_config_is_shown_and_filled_again_for_the_next_model():
    config = {"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}, "train_batch_size": "auto"}
    plugin = DeepSpeedPlugin(hf_ds_config=config, zero3_init_flag=False)
    shown = plugin.deepspeed_config
    for hidden_size, batch_size in ((4, 2), (8, 5)):
        facts = Facts(hidden_sizes=Said((hidden_size,), "M"), micro_batch_sizes=Said((batch_size,), "x"))
        assert plugin.fill(facts.over(BATCHES)).config == shown
        assert plugin.deepspeed_config is shown
        assert shown["zero_optimization"]["reduce_bucket_size"] == hidden_size**2
        assert (shown["train_micro_batch_size_per_gpu"], shown["train_batch_size"]) == (
            batch_size,
            2 * batch_size,
        )
    shown["train_micro_batch_size_per_gpu"] = 7
    with pytest.warns(
        UserWarning, match="_gpu` is 7 by the DeepSpeed config, but 4 by the loaders. The first holds"
    ):
        assert plugin.fill(Facts(hidden_sizes=Said((4,), "M")).over(BATCHES)).config["train_batch_size"] == 14


def test_a_file_fills_the_fields_and_the_arguments_fill_its_auto(tmp_path):
    file = tmp_path / "ds.json"
    file.write_text(
        json.dumps(
            {
                "zero_optimization": {"stage": "auto", "offload_param": {"device": "auto"}},
                "gradient_accumulation_steps": 10,
                "train_batch_size": "auto",
                "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
            }
        )
    )
    plugin = DeepSpeedPlugin(hf_ds_config=file, zero_stage=3, offload_param_device="cpu")
    assert (plugin.zero_stage, plugin.offload_param_device, plugin.gradient_accumulation_steps) == (
        3,
        "cpu",
        10,
    )
    assert plugin.get_value("optimizer.params.lr") == "auto"
    filled = plugin.fill(Facts(learning_rate=Said(0.1, "`DummyOptim`")).over(BATCHES))
    assert filled.origins["zero_optimization.stage"] == "`DeepSpeedPlugin(zero_stage=3)`"
    assert filled.origins["gradient_accumulation_steps"] == f"`{file}`"
    assert filled.config["train_batch_size"] == 80


def test_what_is_set_twice_must_agree(tmp_path, monkeypatch):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 2}, "gradient_clipping": 1.0}))
    monkeypatch.setenv("ACCELERATE_GRADIENT_CLIPPING", "0.5")
    with pytest.raises(ConfigError) as refusal:
        DeepSpeedPlugin(hf_ds_config=str(file), zero_stage=3)
    lines = str(refusal.value).splitlines()
    assert f"- `zero_optimization.stage` is 2 by `{file}`, but 3 by `DeepSpeedPlugin(zero_stage=3)`." in lines
    assert (
        f"- `gradient_clipping` is 1.0 by `{file}`, but 0.5 by `--gradient_clipping` (`ACCELERATE_GRADIENT_CLIPPING`)."
        in lines
    )


def test_keys_of_the_launchers_file_are_refused_next_to_a_config(monkeypatch):
    monkeypatch.setenv("ACCELERATE_CONFIG_DS_FIELDS", "zero_stage,zero3_init_flag,mixed_precision")
    DeepSpeedPlugin()
    with pytest.raises(ConfigError, match=r"says too: `zero_stage`, `mixed_precision`. Leave these out"):
        DeepSpeedPlugin(hf_ds_config={"zero_optimization": {"stage": 2}})


def test_a_config_object_is_shared_and_a_dict_is_copied():
    given = {"zero_optimization": {"stage": "auto"}}
    shared = HfDeepSpeedConfig(given)
    assert DeepSpeedPlugin(hf_ds_config=shared, zero_stage=1).deepspeed_config is shared.config
    assert shared.config["zero_optimization"]["stage"] == 1
    assert given == {"zero_optimization": {"stage": "auto"}}


WRONG = [
    ({"zero_stage": 4}, "`zero_stage` is `4`, but it must be one of: 0, 1, 2, 3"),
    ({"zero_stage": True}, "`zero_stage` is `True`"),
    ({"offload_optimizer_device": "disk"}, "`offload_optimizer_device` is `disk`, but it must be one of"),
    ({"gradient_clipping": "much"}, "`gradient_clipping` is `much`, but it must be a number"),
    ({"gradient_accumulation_steps": 0}, "`gradient_accumulation_steps` is `0`"),
    ({"zero_stage": 2, "offload_param_device": "cpu"}, "no effect with ZeRO stage 2: it needs stage 3"),
    ({"zero_stage": 0, "offload_optimizer_device": "cpu"}, "no effect with ZeRO stage 0: it needs stage 1"),
    (
        {"zero_stage": 2, "offload_optimizer_device": "nvme", "offload_optimizer_nvme_path": "/fast"},
        "no effect with ZeRO stage 2: it needs stage 3",
    ),
    ({"zero_stage": 3, "offload_param_device": "nvme"}, "`offload_param_nvme_path` names no folder"),
    ({"hf_ds_config": {"bf16": {"enabled": True}}}, "has no `zero_optimization`. Add"),
    ({"hf_ds_config": "missing.json"}, "does not exist"),
    ({"enable_msamp": True}, "`enable_msamp` and `msamp_opt_level` are not offered"),
    ({"zero3_init_flag": "perhaps"}, "`zero3_init_flag` is `perhaps`"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_wrong_values_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        DeepSpeedPlugin(**arguments)


@pytest.mark.parametrize(
    ("asked", "config", "settled"),
    [
        ("bf16", {}, {"bf16": {"enabled": True}, "fp16": {"enabled": False}}),
        ("fp16", {}, {"fp16": {"auto_cast": True, "enabled": True}, "bf16": {"enabled": False}}),
        (
            "fp16",
            {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto", "loss_scale": 0}},
            {"bf16": {"enabled": False}, "fp16": {"enabled": True, "loss_scale": 0}},
        ),
        ("no", {"bf16": {"enabled": True}}, {"bf16": {"enabled": True}, "fp16": {"enabled": False}}),
        ("no", {}, {"bf16": {"enabled": False}, "fp16": {"enabled": False}}),
    ],
)
def test_the_precision_is_settled_between_the_run_and_the_config(asked, config, settled):
    plugin = DeepSpeedPlugin(hf_ds_config={"zero_optimization": {"stage": 2}, **config})
    expected = next((name for name in ("fp16", "bf16") if settled[name]["enabled"]), "no")
    assert (
        AcceleratorState(cpu=True, mixed_precision=asked, deepspeed_plugin=plugin).mixed_precision == expected
    )
    assert {name: plugin.deepspeed_config[name] for name in settled} == settled
    assert f"ds_config: {plugin.deepspeed_config}" in repr(AcceleratorState())


def test_another_precision_than_the_configs_is_refused():
    plugin = DeepSpeedPlugin(hf_ds_config={"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}})
    with pytest.raises(
        ConfigError, match="`bf16.enabled` is True by the DeepSpeed config, but False by `mixed_precision"
    ):
        plugin.set_mixed_precision("fp16")


def test_keys_are_filled_or_compared_one_by_one_and_all_at_once():
    plugin = DeepSpeedPlugin(
        hf_ds_config={"zero_optimization": {"stage": 2}, "a": "auto", "section": {"b": "auto", "c": 3}}
    )
    mismatches = []
    plugin.fill_match("section.b", mismatches, **{"section.b": 5})
    plugin.fill_match("section.c", mismatches, **{"section.c": 4})
    plugin.fill_match("nowhere.c", mismatches, **{"nowhere.c": 4})
    assert plugin.get_value("section.b") == 5
    assert mismatches == ["`section.c` is 3, but 4 was given."]
    with pytest.raises(ConfigError, match="`a` is `auto`, and no value was given"):
        plugin.fill_match("a")
    plugin.deepspeed_config_process(must_match=False, **{"a": 1, "section.c": 4})
    assert (plugin.get_value("a"), plugin.get_value("section.c")) == (1, 3)
    with pytest.raises(ConfigError, match="contradicts the values given:\n- `section.c` is 3, but 4"):
        plugin.deepspeed_config_process(**{"section.c": 4})


def test_only_the_state_selects_a_plugin():
    student, teacher = DeepSpeedPlugin(zero_stage=2), DeepSpeedPlugin(zero_stage=0)
    with pytest.raises(StateError, match="accelerator.state.select_deepspeed_plugin"):
        student.select()
    state = AcceleratorState(cpu=True, deepspeed_plugin={"student": student, "teacher": teacher})
    assert get_active_deepspeed_plugin(state) is student
    state.select_deepspeed_plugin("teacher")
    assert get_active_deepspeed_plugin(state) is teacher
    assert (student.selected, teacher.selected) == (False, True)


def test_a_run_without_deepspeed_has_no_active_plugin():
    with pytest.raises(ConfigError, match="There is no DeepSpeed plugin. Pass `deepspeed_plugin`"):
        get_active_deepspeed_plugin(AcceleratorState(cpu=True))


def test_sharded_building_needs_stage_3_and_is_rejected_otherwise():
    with pytest.warns(UserWarning, match="`zero3_init_flag` has no effect with ZeRO stage 2"):
        plugin = DeepSpeedPlugin(zero_stage=2, zero3_init_flag=True)
    assert not plugin.is_zero3_init_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not DeepSpeedPlugin(zero_stage=3, zero3_init_flag=False).is_zero3_init_enabled()


def test_classes_of_moe_layers_must_be_there(monkeypatch):
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", "Linear, Expert")
    plugin = DeepSpeedPlugin(zero_stage=3, zero3_init_flag=False)
    assert plugin.transformer_moe_cls_names == "Linear,Expert"
    with pytest.raises(ConfigError, match="names `Expert`, of which `Sequential` has no module"):
        plugin.set_moe_leaf_modules(torch.nn.Sequential(torch.nn.Linear(1, 1)))
    DeepSpeedPlugin(transformer_moe_cls_names="").set_moe_leaf_modules(torch.nn.Linear(1, 1))


def with_layers(size):
    return DeepSpeedPlugin(
        hf_ds_config={"zero_optimization": {"stage": 2}, "tensor_parallel": {"autotp_size": size}}
    )


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, MeshLayout.of_replicas(4)),
        ("auto", MeshLayout.of_replicas(4)),
        (2, MeshLayout(dp_shard=2, tp=2)),
        (4, MeshLayout(tp=4)),
    ],
)
def test_the_config_arranges_the_ranks_by_tp_group(size, expected):
    assert with_layers(size).default_layout(FOUR) == expected


def test_ranks_that_cannot_share_a_tp_group_evenly_are_refused():
    with pytest.raises(
        ConfigError, match="`tensor_parallel.autotp_size` is 3 .*does not divide the 4 processes"
    ):
        with_layers(3).default_layout(FOUR)


@pytest.mark.parametrize("tp", [1, 4])
def test_a_layout_that_contradicts_the_config_is_refused(tp):
    told = rf"`tensor_parallel.autotp_size` is 2 by .*, but {tp} by `ParallelismConfig\(tp_size={tp}\)`"
    with pytest.raises(ConfigError, match=told):
        with_layers(2).settle_layout(MeshLayout(dp_shard=4 // tp, tp=tp))


def test_a_layout_fills_the_tp_size():
    plugin = DeepSpeedPlugin()
    plugin.settle_layout(MeshLayout(dp_shard=2, tp=2))
    assert plugin.deepspeed_config["tensor_parallel"] == {
        "autotp_size": 2,
        "vocab_parallel_lm_head": False,
    }
