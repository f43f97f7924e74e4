"""What is said of DeepSpeed to the launcher, by flag, variable or config file, arrives in the plugin of every rank."""

import json
import sys
from pathlib import Path

import pytest
from questionnaires import ByText

from accel import DeepSpeedPlugin
from accel_launch.cli import main
from accel_launch.config.questionnaire import fill_in
from accel_launch.config.writing import new_document, write_config
from accel_state.environment import read
from accel_state.environment.settings import SECTIONS, SETTINGS
from accel_state.errors import ConfigError
from tools.harness.scripts import run_command

NVME = {"deepspeed_zero_stage": "3", "deepspeed_offload_optimizer_device": "nvme"}
NVME_PARAM = {"deepspeed_zero_stage": "3", "deepspeed_offload_param_device": "nvme"}
ZERO3 = {"deepspeed_zero_stage": "3"}
FULL = {"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 3}

# For each setting: what is said, what else must be, the field of the plugin that then has a value, and the key of
# DeepSpeed's config that has it too.
CASES = [
    ("deepspeed_config_file", "ds.json", {}, "zero_stage", 1, "train_micro_batch_size_per_gpu", 3),
    ("deepspeed_zero_stage", "1", {}, "zero_stage", 1, "zero_optimization.stage", 1),
    (
        "gradient_accumulation_steps",
        "4",
        {},
        "gradient_accumulation_steps",
        4,
        "gradient_accumulation_steps",
        4,
    ),
    (
        "gradient_accumulation_steps",
        "auto",
        {},
        "gradient_accumulation_steps",
        "auto",
        "train_batch_size",
        "auto",
    ),
    ("gradient_clipping", "0.5", {}, "gradient_clipping", 0.5, "gradient_clipping", 0.5),
    ("gradient_clipping", "auto", {}, "gradient_clipping", "auto", "gradient_clipping", "auto"),
    (
        "deepspeed_offload_optimizer_device",
        "cpu",
        {},
        "offload_optimizer_device",
        "cpu",
        "zero_optimization.offload_optimizer.device",
        "cpu",
    ),
    (
        "deepspeed_offload_optimizer_nvme_path",
        "/fast",
        NVME,
        "offload_optimizer_nvme_path",
        "/fast",
        "zero_optimization.offload_optimizer.nvme_path",
        "/fast",
    ),
    (
        "deepspeed_offload_param_device",
        "cpu",
        ZERO3,
        "offload_param_device",
        "cpu",
        "zero_optimization.offload_param.device",
        "cpu",
    ),
    (
        "deepspeed_offload_param_nvme_path",
        "/fast",
        NVME_PARAM,
        "offload_param_nvme_path",
        "/fast",
        "zero_optimization.offload_param.nvme_path",
        "/fast",
    ),
    ("deepspeed_zero3_init", "true", ZERO3, "zero3_init_flag", True, "zero_optimization.stage", 3),
    ("deepspeed_zero3_init", "false", ZERO3, "zero3_init_flag", False, "zero_optimization.stage", 3),
    (
        "deepspeed_zero3_save_16bit_model",
        "true",
        ZERO3,
        "zero3_save_16bit_model",
        True,
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
        True,
    ),
    (
        "deepspeed_moe_layer_cls_names",
        "Experts,Router",
        ZERO3,
        "transformer_moe_cls_names",
        "Experts,Router",
        "zero_optimization.stage",
        3,
    ),
]
# Said to the launcher alone: which machines DeepSpeed's runner starts ranks on; see test_deepspeed_machines.py.
IDS = [f"{case[0]}={case[1]}" for case in CASES]
SAID = pytest.mark.parametrize(
    ("name", "text", "others", "field", "expected", "key", "value"), CASES, ids=IDS
)


@pytest.fixture(autouse=True)
def nothing_is_said(monkeypatch, tmp_path):
    """The person who runs the tests has no settings; a script and a config of DeepSpeed's own lie here."""
    for setting in (*SECTIONS["DeepSpeed"], SETTINGS["gradient_accumulation_steps"]):
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "ds.json").write_text(json.dumps(FULL))


@pytest.fixture
def plugin_of_ranks(capsys, monkeypatch):
    """Return the plugin that every rank of a launch with these arguments makes."""

    def make(*arguments):
        flags = ["launch", "--dry-run", "--json", "--cpu", "--num_processes", "2", *arguments, "train.py"]
        assert main(flags) == 0
        first, second = (
            {name: text for name, text in process["environ"].items() if name.startswith("ACCELERATE")}
            for process in json.loads(capsys.readouterr().out)["processes"]
        )
        assert first == second
        with monkeypatch.context() as patch:
            for name, text in first.items():
                patch.setenv(name, text)
            assert read("use_deepspeed") is True
            return DeepSpeedPlugin()

    return make


def config_file(folder: Path, values: dict[str, str]) -> Path:
    """Write a config file as the questionnaire of Accelerate does."""
    keys = {SETTINGS[name].config_key.partition(".")[2]: text for name, text in values.items()}
    lines = ["distributed_type: DEEPSPEED", "deepspeed_config:", *(f"  {key}: {keys[key]}" for key in keys)]
    path = folder / "said.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


@SAID
def test_a_flag_arrives(plugin_of_ranks, name, text, others, field, expected, key, value):
    flags = [
        part for setting, said in {**others, name: text}.items() for part in (SETTINGS[setting].flag, said)
    ]
    plugin = plugin_of_ranks("--use_deepspeed", *flags)
    assert (getattr(plugin, field), plugin.get_value(key)) == (expected, value)


@SAID
def test_a_key_of_the_config_file_arrives(
    plugin_of_ranks, tmp_path, name, text, others, field, expected, key, value
):
    plugin = plugin_of_ranks("--config_file", str(config_file(tmp_path, {**others, name: text})))
    assert (getattr(plugin, field), plugin.get_value(key)) == (expected, value)


@SAID
def test_a_variable_arrives(plugin_of_ranks, monkeypatch, name, text, others, field, expected, key, value):
    for setting, said in {**others, name: text}.items():
        monkeypatch.setenv(SETTINGS[setting].variable, said)
    plugin = plugin_of_ranks("--use_deepspeed")
    assert (getattr(plugin, field), plugin.get_value(key)) == (expected, value)


def test_every_setting_is_followed():
    listed = {*SECTIONS["DeepSpeed"], SETTINGS["gradient_accumulation_steps"]}
    assert {setting.name for setting in listed if setting.config_key} == {case[0] for case in CASES}


def test_flags_fill_what_is_auto_in_a_config_of_deepspeeds_own(plugin_of_ranks, tmp_path):
    """The third scenario of the guide of Accelerate."""
    config = {
        "bf16": {"enabled": "auto"},
        "zero_optimization": {
            "stage": "auto",
            "stage3_gather_16bit_weights_on_model_save": "auto",
            "offload_optimizer": {"device": "auto", "nvme_path": "/nvme"},
            "offload_param": {"device": "auto"},
        },
        "gradient_clipping": "auto",
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "steps_per_print": 2000000,
    }
    (tmp_path / "ds.json").write_text(json.dumps(config))
    said = """--deepspeed_config_file ds.json --zero_stage 3 --gradient_accumulation_steps 5 --gradient_clipping 1.0
        --offload_param_device cpu --offload_optimizer_device nvme --zero3_save_16bit_model true"""
    plugin = plugin_of_ranks("--use_deepspeed", *said.split())
    assert plugin.settle_precision("fp16") == "fp16"
    assert plugin.deepspeed_config == {
        **config,
        "bf16": {"enabled": False},
        "fp16": {"auto_cast": True, "enabled": True},
        "zero_optimization": {
            "stage": 3,
            "stage3_gather_16bit_weights_on_model_save": True,
            "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"},
            "offload_param": {"device": "cpu"},
            "sub_group_size": 1,  # on NVMe, each parameter is a separate group
        },
        "gradient_clipping": 1.0,
        "gradient_accumulation_steps": 5,
    }


def test_a_flag_that_contradicts_a_config_of_deepspeeds_own_is_refused_by_name(plugin_of_ranks):
    with pytest.raises(
        ConfigError, match=r"stage` is 1 by `ds.json`, but 3 by `--zero_stage` \(`ACCELERATE_DEEPSPEED"
    ):
        plugin_of_ranks("--use_deepspeed", "--deepspeed_config_file", "ds.json", "--zero_stage", "3")


WRONG = [
    {"deepspeed_zero_stage": "4"},
    {"deepspeed_offload_param_device": "cpu"},
    {"deepspeed_zero_stage": "0", "deepspeed_offload_optimizer_device": "cpu"},
    {"deepspeed_offload_optimizer_device": "nvme"},
    {"deepspeed_offload_optimizer_device": "disk"},
    {"gradient_clipping": "much"},
    {"gradient_accumulation_steps": "0"},
    {"deepspeed_zero3_init": "perhaps"},
]


@pytest.mark.parametrize("settings", WRONG, ids=str)
def test_what_the_plugin_would_refuse_is_refused_before_the_launch(capsys, monkeypatch, settings):
    flags = [part for name, text in settings.items() for part in (SETTINGS[name].flag, text)]
    assert main(["launch", "--dry-run", "--use_deepspeed", *flags, "train.py"]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    for name, text in settings.items():
        monkeypatch.setenv(SETTINGS[name].variable, text)
    with pytest.raises(ConfigError):
        DeepSpeedPlugin()


def test_a_config_file_that_repeats_a_deepspeed_config_is_refused(capsys, tmp_path):
    """The first scenario of the guide of Accelerate."""
    path = config_file(tmp_path, {"deepspeed_config_file": "ds.json", **ZERO3, "gradient_clipping": "1.0"})
    assert main(["launch", "--dry-run", "--config_file", str(path), "train.py"]) == 1
    assert "When using `deepspeed_config_file`" in capsys.readouterr().err


ANSWERED = [
    ({}, {"zero_stage": 2, "gradient_accumulation_steps": "auto", "gradient_clipping": "auto"}),
    (
        {
            "ZeRO stage": "3",
            "keep optimizer states": "nvme",
            "keep parameters": "cpu",
            "per optimizer step": "4",
            "Clip": "yes",
            "which norm": "0.5",
            "16-bit weights": "yes",
            "sharded from the start": "no",
            "mixture-of-experts": "yes",
            "Which classes": "Experts",
        },
        {
            "zero_stage": 3,
            "offload_optimizer_device": "nvme",
            "offload_optimizer_nvme_path": "/nvme",
            "offload_param_device": "cpu",
            "gradient_accumulation_steps": 4,
            "gradient_clipping": 0.5,
            "zero3_save_16bit_model": True,
            "zero3_init_flag": False,
            "transformer_moe_cls_names": "Experts",
        },
    ),
    ({"JSON": "yes", "Where is it": "ds.json"}, {"zero_stage": 1, "zero3_init_flag": False}),
]


@pytest.mark.parametrize(("answers", "fields"), ANSWERED)
def test_what_the_questionnaire_writes_arrives(plugin_of_ranks, tmp_path, answers, fields):
    path = tmp_path / "answered.yaml"
    write_config(
        path,
        new_document(fill_in(ByText({"type of machine": "multi-CPU", "with DeepSpeed": "yes", **answers}))),
    )
    plugin = plugin_of_ranks("--config_file", str(path))
    assert {name: getattr(plugin, name) for name in fields} == fields


def test_config_show_reports_who_specifies_each_value_of_the_filled_config(capsys, tmp_path):
    path = config_file(tmp_path, {"deepspeed_config_file": "ds.json"})
    flags = ["--config_file", str(path), "--num_processes", "4", "--gradient_clipping", "0.5"]
    assert main(["config", "show", "--deepspeed", *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["key", "value", "said", "by"]
    table = {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines[1:]}
    assert table["zero_optimization.stage"] == ["1", "`ds.json`"]
    assert table["gradient_clipping"] == ["0.5", "`--gradient_clipping`"]
    assert table["train_batch_size"][0] == "12"
    assert main(["config", "show", "--deepspeed", "--json", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["gradient_clipping"] == {
        "value": "0.5",
        "source": "`--gradient_clipping`",
    }


def test_importing_the_names_of_deepspeed_imports_neither_it_nor_torch_with_accel():
    program = """
        import sys
        import accel
        assert "torch" not in sys.modules
        from accel import DeepSpeedPlugin
        from accel.utils import DummyOptim, DummyScheduler, GatheredParameters, compile_regions_deepspeed
        from accel.utils import DeepSpeedEngineWrapper, DeepSpeedOptimizerWrapper, DeepSpeedSchedulerWrapper
        from accel.utils.deepspeed import HfDeepSpeedConfig, get_active_deepspeed_plugin
        from accel.utils.deepspeed import map_pytorch_optim_to_deepspeed
        DeepSpeedPlugin(zero_stage=3)
        assert "deepspeed" not in sys.modules, "it was imported"
    """
    lines = "\n".join(line.strip() for line in program.splitlines())
    done = run_command([sys.executable, "-c", lines], timeout_s=120)
    assert done.returncode == 0, done.stderr
