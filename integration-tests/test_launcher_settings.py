"""What is specified of FSDP, parallelism and DeepSpeed by flag, variable or file is in the plugin of every rank."""

import json
import sys
import textwrap

import pytest
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    OffloadPolicy,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

from accel import DeepSpeedPlugin, FullyShardedDataParallelPlugin, ParallelismConfig
from accel_launch.cli import main
from accel_launch.config.questionnaire import fill_in
from accel_launch.config.writing import new_document, write_config
from accel_state.environment import read
from accel_state.environment.settings import SECTIONS, SETTINGS
from accel_state.errors import ConfigError
from tools.harness.scripts import run_command

V2, ZERO3 = {"fsdp_version": "2"}, {"deepspeed_zero_stage": "3"}
PP, SP = {"parallelism_pp_size": "2"}, {"parallelism_sp_size": "2"}
NVME = {**ZERO3, "deepspeed_offload_optimizer_device": "nvme"}
NVME_PARAM = {**ZERO3, "deepspeed_offload_param_device": "nvme"}
FULL = {"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 3}


class ByText:
    """Answers the questions whose text has one of these words, everything else with the default."""

    def __init__(self, answers):
        self.answers = answers

    def text(self, question, *, default):
        return next((answer for words, answer in self.answers.items() if words in question), default)

    def choice(self, question, labels, *, default):
        return list(labels).index(self.text(question, default=labels[default]))

    def say(self, line):
        raise AssertionError(f"an answer was refused: {line}")


# For each setting: its text, the settings that go with it, and the field of the plugin that then has a value.
CASES = [
    ("fsdp_version", "2", {}, {"fsdp_version": 2}),
    ("fsdp_sharding_strategy", "2", {}, {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}),
    ("fsdp_sharding_strategy", "NO_SHARD", {}, {"sharding_strategy": ShardingStrategy.NO_SHARD}),
    ("fsdp_sharding_strategy", "SHARD_GRAD_OP", V2, {"reshard_after_forward": False}),
    ("fsdp_reshard_after_forward", "false", V2, {"reshard_after_forward": False}),
    ("fsdp_reshard_after_forward", "HYBRID_SHARD", {}, {"sharding_strategy": ShardingStrategy.HYBRID_SHARD}),
    ("fsdp_offload_params", "true", {}, {"cpu_offload": CPUOffload(offload_params=True)}),
    ("fsdp_offload_params", "false", V2, {"cpu_offload": OffloadPolicy()}),
    ("fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP", {}, {"auto_wrap_policy": transformer_auto_wrap_policy}),
    ("fsdp_auto_wrap_policy", "2", V2, {"auto_wrap_policy": size_based_auto_wrap_policy}),
    ("fsdp_auto_wrap_policy", "NO_WRAP", {}, {"wrap_policy_name": "NO_WRAP"}),
    ("fsdp_transformer_layer_cls_to_wrap", "Block,Embedding", {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
     {"transformer_cls_names_to_wrap": ["Block", "Embedding"]}),
    ("fsdp_min_num_params", "17", {"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP"}, {"min_num_params": 17}),
    ("fsdp_backward_prefetch", "BACKWARD_PRE", {}, {"backward_prefetch": BackwardPrefetch.BACKWARD_PRE}),
    ("fsdp_forward_prefetch", "true", {}, {"forward_prefetch": True}),
    ("fsdp_state_dict_type", "SHARDED_STATE_DICT", {}, {"state_dict_type": StateDictType.SHARDED_STATE_DICT}),
    ("fsdp_state_dict_type", "1", V2, {"state_dict_type": StateDictType.FULL_STATE_DICT}),
    ("fsdp_use_orig_params", "true", {}, {"use_orig_params": True}),
    ("fsdp_cpu_ram_efficient_loading", "true", {}, {"cpu_ram_efficient_loading": True}),
    ("fsdp_cpu_ram_efficient_loading", "true", {}, {"sync_module_states": True}),
    ("fsdp_sync_module_states", "true", {}, {"sync_module_states": True}),
    ("fsdp_activation_checkpointing", "true", V2, {"activation_checkpointing": True}),
    ("fsdp_activation_checkpointing_offload", "true", {**V2, "fsdp_activation_checkpointing": "true"},
     {"activation_checkpointing_offload": True}),
    ("fsdp_ignored_modules", "head|norm", V2, {"ignored_modules": "head|norm"}),
    ("parallelism_dp_replicate_size", "2", {}, {"dp_replicate_size": 2}),
    ("parallelism_dp_shard_size", "3", {}, {"dp_shard_size": 3}),
    ("parallelism_tp_size", "4", {}, {"tp_size": 4}),
    ("parallelism_ep_size", "2", {"parallelism_dp_shard_size": "2"}, {"ep_size": 2}),
    ("parallelism_cp_size", "2", {}, {"cp_size": 2}),
    ("parallelism_cp_backend", "torch", {}, {"cp_backend": "torch"}),
    ("parallelism_cp_comm_strategy", "alltoall", {"parallelism_cp_size": "2"},
     {"cp_handler.cp_comm_strategy": "alltoall"}),
    ("parallelism_pp_size", "2", {}, {"pp_size": 2}),
    ("parallelism_pp_schedule", "gpipe", PP, {"pp_handler.schedule": "gpipe"}),
    ("parallelism_pp_num_micro_batches", "3", PP, {"pp_handler.num_micro_batches": 3}),
    ("parallelism_pp_stages_per_rank", "2", {**PP, "parallelism_pp_schedule": "interleaved_1f1b"},
     {"pp_handler.stages_per_rank": 2}),
    ("parallelism_sp_size", "2", {}, {"sp_size": 2}),
    ("parallelism_sp_backend", "torch", {}, {"sp_backend": "torch"}),
    ("parallelism_sp_seq_length", "512", SP, {"sp_handler.sp_seq_length": 512}),
    ("parallelism_sp_seq_length_is_variable", "false", {**SP, "parallelism_sp_seq_length": "8"},
     {"sp_handler.sp_seq_length_is_variable": False}),
    ("parallelism_sp_attn_implementation", "flash_attention_2", SP,
     {"sp_handler.sp_attn_implementation": "flash_attention_2"}),
    ("deepspeed_config_file", "ds.json", {}, {"zero_stage": 1, "config:train_micro_batch_size_per_gpu": 3}),
    ("deepspeed_zero_stage", "1", {}, {"zero_stage": 1, "config:zero_optimization.stage": 1}),
    ("gradient_accumulation_steps", "4", {},
     {"gradient_accumulation_steps": 4, "config:gradient_accumulation_steps": 4}),
    ("gradient_accumulation_steps", "auto", {},
     {"gradient_accumulation_steps": "auto", "config:train_batch_size": "auto"}),
    ("gradient_clipping", "0.5", {}, {"gradient_clipping": 0.5, "config:gradient_clipping": 0.5}),
    ("gradient_clipping", "auto", {}, {"gradient_clipping": "auto", "config:gradient_clipping": "auto"}),
    ("deepspeed_offload_optimizer_device", "cpu", {},
     {"offload_optimizer_device": "cpu", "config:zero_optimization.offload_optimizer.device": "cpu"}),
    ("deepspeed_offload_optimizer_nvme_path", "/fast", NVME,
     {"offload_optimizer_nvme_path": "/fast", "config:zero_optimization.offload_optimizer.nvme_path": "/fast"}),
    ("deepspeed_offload_param_device", "cpu", ZERO3,
     {"offload_param_device": "cpu", "config:zero_optimization.offload_param.device": "cpu"}),
    ("deepspeed_offload_param_nvme_path", "/fast", NVME_PARAM,
     {"offload_param_nvme_path": "/fast", "config:zero_optimization.offload_param.nvme_path": "/fast"}),
    ("deepspeed_zero3_init", "true", ZERO3, {"zero3_init_flag": True, "config:zero_optimization.stage": 3}),
    ("deepspeed_zero3_init", "false", ZERO3, {"zero3_init_flag": False, "config:zero_optimization.stage": 3}),
    ("deepspeed_zero3_save_16bit_model", "true", ZERO3,
     {"zero3_save_16bit_model": True, "config:zero_optimization.stage3_gather_16bit_weights_on_model_save": True}),
    ("deepspeed_moe_layer_cls_names", "Experts,Router", ZERO3,
     {"transformer_moe_cls_names": "Experts,Router", "config:zero_optimization.stage": 3}),
]  # fmt: skip
KINDS = {
    "fsdp": ("use_fsdp", FullyShardedDataParallelPlugin),
    "parallelism": ("use_parallelism_config", ParallelismConfig),
    "deepspeed": ("use_deepspeed", DeepSpeedPlugin),
}
ELSEWHERE = {"gradient_accumulation_steps", "gradient_clipping"}
TITLES = ("FSDP", "Combined parallelism", "DeepSpeed")


def listed():
    """Return the settings of the sections."""
    return {setting for title in TITLES for setting in SECTIONS[title]} | {
        SETTINGS["gradient_accumulation_steps"]
    }


def kind_of(name):
    return "deepspeed" if name in ELSEWHERE else name.split("_")[0]


@pytest.fixture(autouse=True)
def nothing_is_specified(monkeypatch, tmp_path):
    """The person who runs the tests has no settings; a script and a config of DeepSpeed's own lie here."""
    for setting in listed():
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "ds.json").write_text(json.dumps(FULL))


@pytest.fixture
def launched(capsys, monkeypatch):
    """Return the plugin of a kind that every rank of a launch with these arguments makes."""

    def make(kind, *arguments):
        assert (
            main(["launch", "--dry-run", "--json", "--cpu", "--num_processes", "2", *arguments, "train.py"])
            == 0
        )
        first, second = (
            {name: text for name, text in process["environ"].items() if name.startswith(PREFIXES)}
            for process in json.loads(capsys.readouterr().out)["processes"]
        )
        assert first == second
        use, plugin = KINDS[kind]
        with monkeypatch.context() as patch:
            for name, text in first.items():
                patch.setenv(name, text)
            assert read(use) is True
            return plugin()

    return make


PREFIXES = ("ACCELERATE", "FSDP", "PARALLELISM")


def config_file(folder, values):
    """Write a config file as the questionnaire of Accelerate does."""
    sections = {}
    for name, text in values.items():
        section, _, key = SETTINGS[name].config_key.partition(".")
        sections.setdefault(section, {})[key] = text
    kind = {"fsdp_config": "FSDP", "deepspeed_config": "DEEPSPEED"}
    lines = [f"distributed_type: {next((kind[one] for one in sections if one in kind), 'MULTI_CPU')}"]
    for section, keys in sections.items():
        lines += [f"{section}:", *(f"  {key}: {text}" for key, text in keys.items())]
    path = folder / "specified.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def assert_has(plugin, fields):
    for field, expected in fields.items():
        found = plugin
        if field.startswith("config:"):
            found = plugin.get_value(field.removeprefix("config:"))
        else:
            for name in field.split("."):
                found = getattr(found, name)
        assert found == expected, field


def flags_of(settings):
    return [part for name, text in settings.items() for part in (SETTINGS[name].flag, text)]


@pytest.mark.parametrize(
    ("name", "text", "others", "fields"), CASES, ids=[f"{case[0]}={case[1]}" for case in CASES]
)
def test_a_flag_a_key_and_a_variable_arrive(launched, monkeypatch, tmp_path, name, text, others, fields):
    kind, settings = kind_of(name), {**others, name: text}
    if SETTINGS[name].flag is not None:
        assert_has(launched(kind, f"--{KINDS[kind][0]}", *flags_of(settings)), fields)
    assert_has(launched(kind, "--config_file", str(config_file(tmp_path, settings))), fields)
    for setting, value in settings.items():
        monkeypatch.setenv(SETTINGS[setting].variable, value)
    assert_has(launched(kind, f"--{KINDS[kind][0]}"), fields)


def test_every_setting_is_followed():
    assert {setting.name for setting in listed() if setting.config_key} == {case[0] for case in CASES}


def test_flags_fill_what_is_auto_in_a_config_of_deepspeeds_own(launched, tmp_path):
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
    plugin = launched("deepspeed", "--use_deepspeed", *said.split())
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


def test_a_flag_that_contradicts_a_config_of_deepspeeds_own_is_refused_by_name(launched):
    with pytest.raises(
        ConfigError, match=r"stage` is 1 by `ds.json`, but 3 by `--zero_stage` \(`ACCELERATE_DEEPSPEED"
    ):
        launched("deepspeed", "--use_deepspeed", "--deepspeed_config_file", "ds.json", "--zero_stage", "3")


WRONG = [
    ("fsdp", {"fsdp_version": "2", "fsdp_sharding_strategy": "HYBRID_SHARD"}),
    ("fsdp", {"fsdp_version": "2", "fsdp_reshard_after_forward": "NO_SHARD"}),
    ("fsdp", {"fsdp_state_dict_type": "LOCAL_STATE_DICT"}),
    ("fsdp", {"fsdp_version": "1", "fsdp_reshard_after_forward": "false"}),
    ("fsdp", {"fsdp_sharding_strategy": "NO_SHARD", "fsdp_reshard_after_forward": "SHARD_GRAD_OP"}),
    ("fsdp", {"fsdp_transformer_layer_cls_to_wrap": "Block"}),
    ("fsdp", {"fsdp_activation_checkpointing_offload": "true"}),
    ("fsdp", {"fsdp_version": "2", "fsdp_activation_checkpointing_offload": "true"}),
    ("fsdp", {"fsdp_version": "3"}),
    ("fsdp", {"fsdp_sharding_strategy": "6"}),
    ("fsdp", {"fsdp_auto_wrap_policy": "SOME_WRAP"}),
    ("fsdp", {"fsdp_min_num_params": "-1", "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP"}),
    ("fsdp", {"fsdp_offload_params": "perhaps"}),
    ("deepspeed", {"deepspeed_zero_stage": "4"}),
    ("deepspeed", {"deepspeed_offload_param_device": "cpu"}),
    ("deepspeed", {"deepspeed_zero_stage": "0", "deepspeed_offload_optimizer_device": "cpu"}),
    ("deepspeed", {"deepspeed_offload_optimizer_device": "nvme"}),
    ("deepspeed", {"deepspeed_offload_optimizer_device": "disk"}),
    ("deepspeed", {"gradient_clipping": "much"}),
    ("deepspeed", {"gradient_accumulation_steps": "0"}),
    ("deepspeed", {"deepspeed_zero3_init": "perhaps"}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "settings"), WRONG, ids=str)
def test_what_the_plugin_would_refuse_is_refused_before_the_launch(capsys, monkeypatch, kind, settings):
    use, plugin = KINDS[kind]
    assert main(["launch", "--dry-run", f"--{use}", *flags_of(settings), "train.py"]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    for name, text in settings.items():
        monkeypatch.setenv(SETTINGS[name].variable, text)
    with pytest.raises(ConfigError):
        plugin()


def test_a_config_file_that_repeats_a_deepspeed_config_is_refused(capsys, tmp_path):
    """The first scenario of the guide of Accelerate."""
    path = config_file(tmp_path, {"deepspeed_config_file": "ds.json", **ZERO3, "gradient_clipping": "1.0"})
    assert main(["launch", "--dry-run", "--config_file", str(path), "train.py"]) == 1
    assert "When using `deepspeed_config_file`" in capsys.readouterr().err


V2_ANSWERS = {"(FSDP)": "yes", "Which version": "2"}
ANSWERED = [
    ("fsdp", {"(FSDP)": "yes", "Which version": "1"},
     {"sharding_strategy": ShardingStrategy.FULL_SHARD, "sync_module_states": True}),
    ("fsdp", {"(FSDP)": "yes", "Which version": "1", "What is to be": "SHARD_GRAD_OP", "one process only": "no"},
     {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP, "cpu_ram_efficient_loading": False}),
    ("fsdp", V2_ANSWERS, {"reshard_after_forward": True, "auto_wrap_policy": transformer_auto_wrap_policy}),
    ("fsdp", {**V2_ANSWERS, "Reshard the parameters": "no", "cut into units": "SIZE_BASED_WRAP",
              "written": "FULL_STATE_DICT"},
     {"reshard_after_forward": False, "auto_wrap_policy": size_based_auto_wrap_policy,
      "min_num_params": 100_000_000, "state_dict_type": StateDictType.FULL_STATE_DICT}),
    ("fsdp", {**V2_ANSWERS, "_no_split_modules": "no", "Which classes": "A,B", "Compute activations": "yes",
              "Keep the inputs": "yes"},
     {"transformer_cls_names_to_wrap": ["A", "B"], "activation_checkpointing": True,
      "activation_checkpointing_offload": True}),
    ("deepspeed", {"with DeepSpeed": "yes"},
     {"zero_stage": 2, "gradient_accumulation_steps": "auto", "gradient_clipping": "auto"}),
    ("deepspeed", {"with DeepSpeed": "yes", "ZeRO stage": "3", "keep optimizer states": "nvme",
                   "keep parameters": "cpu", "per optimizer step": "4", "Clip": "yes", "which norm": "0.5",
                   "16-bit weights": "yes",
                   "sharded from the start": "no", "mixture-of-experts": "yes", "Which classes": "Experts"},
     {"zero_stage": 3, "offload_optimizer_device": "nvme", "offload_optimizer_nvme_path": "/nvme",
      "offload_param_device": "cpu", "gradient_accumulation_steps": 4, "gradient_clipping": 0.5,
      "zero3_save_16bit_model": True, "zero3_init_flag": False, "transformer_moe_cls_names": "Experts"}),
    ("deepspeed", {"with DeepSpeed": "yes", "JSON": "yes", "Where is it": "ds.json"},
     {"zero_stage": 1, "zero3_init_flag": False}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "answers", "fields"), ANSWERED)
def test_what_the_questionnaire_writes_arrives(launched, tmp_path, kind, answers, fields):
    path = tmp_path / "answered.yaml"
    write_config(path, new_document(fill_in(ByText({"type of machine": "multi-CPU", **answers}))))
    assert_has(launched(kind, "--config_file", str(path)), fields)


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


SCRIPT = """
    import sys
    import torch
    from accel import Accelerator

    accelerator = Accelerator()
    model = accelerator.prepare(torch.nn.Linear(4, 4))
    plugin = accelerator.state.fsdp_plugin
    placements = [repr(parameter.placements[0]) for parameter in model.parameters()]
    print(accelerator.process_index, accelerator.is_fsdp2, plugin.reshard_after_forward, *placements)
    accelerator.end_training()
"""


@pytest.mark.engine("long")
def test_a_launched_script_is_sharded_as_its_config_file_specifies(tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    path = config_file(tmp_path, {"fsdp_version": "2", "fsdp_reshard_after_forward": "false"})
    flags = ["--cpu", "--num_processes", "2", "--config_file", str(path)]
    done = run_command(
        [sys.executable, "-m", "accel_launch", "launch", *flags, str(tmp_path / "train.py")], timeout_s=120
    )
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if "Shard" in line) == [
        f"{rank} True False Shard(dim=0) Shard(dim=0)" for rank in range(2)
    ]
