"""What is said of FSDP to the launcher, by flag, variable or config file, arrives in the plugin of every rank."""

import json
import sys
import textwrap

import pytest
from questionnaires import ByText
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    OffloadPolicy,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

from accel import FullyShardedDataParallelPlugin, ParallelismConfig
from accel_launch.cli import main
from accel_launch.config.questionnaire import fill_in
from accel_launch.config.writing import new_document, write_config
from accel_state.environment import read
from accel_state.environment.settings import SECTIONS, SETTINGS
from accel_state.errors import ConfigError
from tools.harness.scripts import run_command

# For each setting: what is said, what else must be, and the field of the plugin that then has a value.
FSDP = [
    ("fsdp_version", "2", {}, "fsdp_version", 2),
    ("fsdp_sharding_strategy", "2", {}, "sharding_strategy", ShardingStrategy.SHARD_GRAD_OP),
    ("fsdp_sharding_strategy", "NO_SHARD", {}, "sharding_strategy", ShardingStrategy.NO_SHARD),
    ("fsdp_sharding_strategy", "SHARD_GRAD_OP", {"version": "2"}, "reshard_after_forward", False),
    ("fsdp_reshard_after_forward", "false", {"version": "2"}, "reshard_after_forward", False),
    ("fsdp_reshard_after_forward", "HYBRID_SHARD", {}, "sharding_strategy", ShardingStrategy.HYBRID_SHARD),
    ("fsdp_offload_params", "true", {}, "cpu_offload", CPUOffload(offload_params=True)),
    ("fsdp_offload_params", "false", {"version": "2"}, "cpu_offload", OffloadPolicy()),
    ("fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP", {}, "auto_wrap_policy", transformer_auto_wrap_policy),
    ("fsdp_auto_wrap_policy", "2", {"version": "2"}, "auto_wrap_policy", size_based_auto_wrap_policy),
    ("fsdp_auto_wrap_policy", "NO_WRAP", {}, "wrap_policy_name", "NO_WRAP"),
    (
        "fsdp_transformer_layer_cls_to_wrap",
        "Block,Embedding",
        {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
        "transformer_cls_names_to_wrap",
        ["Block", "Embedding"],
    ),
    ("fsdp_min_num_params", "17", {"auto_wrap_policy": "SIZE_BASED_WRAP"}, "min_num_params", 17),
    ("fsdp_backward_prefetch", "BACKWARD_PRE", {}, "backward_prefetch", BackwardPrefetch.BACKWARD_PRE),
    ("fsdp_forward_prefetch", "true", {}, "forward_prefetch", True),
    ("fsdp_state_dict_type", "SHARDED_STATE_DICT", {}, "state_dict_type", StateDictType.SHARDED_STATE_DICT),
    ("fsdp_state_dict_type", "1", {"version": "2"}, "state_dict_type", StateDictType.FULL_STATE_DICT),
    ("fsdp_use_orig_params", "true", {}, "use_orig_params", True),
    ("fsdp_cpu_ram_efficient_loading", "true", {}, "cpu_ram_efficient_loading", True),
    ("fsdp_cpu_ram_efficient_loading", "true", {}, "sync_module_states", True),
    ("fsdp_sync_module_states", "true", {}, "sync_module_states", True),
    ("fsdp_activation_checkpointing", "true", {"version": "2"}, "activation_checkpointing", True),
    (
        "fsdp_activation_checkpointing_offload",
        "true",
        {"version": "2", "activation_checkpointing": "true"},
        "activation_checkpointing_offload",
        True,
    ),
    ("fsdp_ignored_modules", "head|norm", {"version": "2"}, "ignored_modules", "head|norm"),
]
PARALLELISM = [
    ("parallelism_dp_replicate_size", "2", {}, "dp_replicate_size", 2),
    ("parallelism_dp_shard_size", "3", {}, "dp_shard_size", 3),
    ("parallelism_tp_size", "4", {}, "tp_size", 4),
    ("parallelism_ep_size", "2", {"dp_shard_size": "2"}, "ep_size", 2),
    ("parallelism_cp_size", "2", {}, "cp_size", 2),
    ("parallelism_cp_backend", "torch", {}, "cp_backend", "torch"),
    ("parallelism_cp_comm_strategy", "alltoall", {"cp_size": "2"}, "cp_handler.cp_comm_strategy", "alltoall"),
    ("parallelism_pp_size", "2", {}, "pp_size", 2),
    ("parallelism_pp_schedule", "gpipe", {"pp_size": "2"}, "pp_handler.schedule", "gpipe"),
    ("parallelism_pp_num_micro_batches", "3", {"pp_size": "2"}, "pp_handler.num_micro_batches", 3),
    (
        "parallelism_pp_stages_per_rank",
        "2",
        {"pp_size": "2", "pp_schedule": "interleaved_1f1b"},
        "pp_handler.stages_per_rank",
        2,
    ),
    ("parallelism_sp_size", "2", {}, "sp_size", 2),
    ("parallelism_sp_backend", "torch", {}, "sp_backend", "torch"),
    ("parallelism_sp_seq_length", "512", {"sp_size": "2"}, "sp_handler.sp_seq_length", 512),
    (
        "parallelism_sp_seq_length_is_variable",
        "false",
        {"sp_size": "2", "sp_seq_length": "8"},
        "sp_handler.sp_seq_length_is_variable",
        False,
    ),
    (
        "parallelism_sp_attn_implementation",
        "flash_attention_2",
        {"sp_size": "2"},
        "sp_handler.sp_attn_implementation",
        "flash_attention_2",
    ),
]
KINDS = {
    "fsdp": ("use_fsdp", FullyShardedDataParallelPlugin),
    "parallelism": ("use_parallelism_config", ParallelismConfig),
}


@pytest.fixture(autouse=True)
def nothing_is_said(monkeypatch, tmp_path):
    """The person who runs the tests has no settings, and a script lies here."""
    for title in ("FSDP", "Combined parallelism"):
        for setting in SECTIONS[title]:
            monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")


def said(name, text, others):
    """Return the settings of one case by name, those that go with it included."""
    prefix = name.split("_")[0]
    return {f"{prefix}_{other}": value for other, value in others.items()} | {name: text}


def environment_of_ranks(capsys, *arguments):
    assert (
        main(["launch", "--dry-run", "--json", "--cpu", "--num_processes", "2", *arguments, "train.py"]) == 0
    )
    plan = json.loads(capsys.readouterr().out)
    first, *others = (process["environ"] for process in plan["processes"])
    settings = {
        name: text for name, text in first.items() if name.startswith(("ACCELERATE", "FSDP", "PARALLELISM"))
    }
    assert all(settings.items() <= other.items() for other in others)
    return settings


def field_of(monkeypatch, kind, environ, field):
    with monkeypatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        assert read(KINDS[kind][0]) is True
        found = KINDS[kind][1]()
    for name in field.split("."):
        found = getattr(found, name)
    return found


def config_file(folder, values):
    """Write a config file as the questionnaire of Accelerate does."""
    sections = {}
    for name, text in values.items():
        section, _, key = SETTINGS[name].config_key.partition(".")
        sections.setdefault(section, {})[key] = text
    kind = "FSDP" if "fsdp_config" in sections else "MULTI_CPU"
    lines = [f"distributed_type: {kind}"]
    for section, keys in sections.items():
        lines += [f"{section}:", *(f"  {key}: {text}" for key, text in keys.items())]
    path = folder / "said.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


NAMES = ("kind", "name", "text", "others", "field", "expected")
CASES = [pytest.param(case[0].split("_")[0], *case, id=f"{case[0]}={case[1]}") for case in FSDP + PARALLELISM]
HAS_FLAG = [case for case in CASES if SETTINGS[case.values[1]].flag is not None]


@pytest.mark.parametrize(NAMES, HAS_FLAG)
def test_a_flag_arrives(capsys, monkeypatch, kind, name, text, others, field, expected):
    flags = [f"--{KINDS[kind][0]}"]
    for setting, value in said(name, text, others).items():
        flags += [SETTINGS[setting].flag, value]
    environ = environment_of_ranks(capsys, *flags)
    assert field_of(monkeypatch, kind, environ, field) == expected


@pytest.mark.parametrize(NAMES, CASES)
def test_a_key_of_the_config_file_arrives(
    capsys, monkeypatch, tmp_path, kind, name, text, others, field, expected
):
    path = config_file(tmp_path, said(name, text, others))
    environ = environment_of_ranks(capsys, "--config_file", str(path))
    assert field_of(monkeypatch, kind, environ, field) == expected


@pytest.mark.parametrize(NAMES, CASES)
def test_a_variable_arrives(capsys, monkeypatch, kind, name, text, others, field, expected):
    for setting, value in said(name, text, others).items():
        monkeypatch.setenv(SETTINGS[setting].variable, value)
    environ = environment_of_ranks(capsys, f"--{KINDS[kind][0]}")
    assert field_of(monkeypatch, kind, environ, field) == expected


def test_every_setting_is_followed():
    followed = {case[0] for case in FSDP + PARALLELISM}
    listed = {setting for title in ("FSDP", "Combined parallelism") for setting in SECTIONS[title]}
    assert {setting.name for setting in listed if setting.config_key} == followed


WRONG = [
    {"fsdp_version": "2", "fsdp_sharding_strategy": "HYBRID_SHARD"},
    {"fsdp_version": "2", "fsdp_reshard_after_forward": "NO_SHARD"},
    {"fsdp_version": "2", "fsdp_state_dict_type": "LOCAL_STATE_DICT"},
    {"fsdp_version": "1", "fsdp_reshard_after_forward": "false"},
    {"fsdp_sharding_strategy": "NO_SHARD", "fsdp_reshard_after_forward": "SHARD_GRAD_OP"},
    {"fsdp_transformer_layer_cls_to_wrap": "Block"},
    {"fsdp_activation_checkpointing_offload": "true"},
    {"fsdp_version": "2", "fsdp_activation_checkpointing_offload": "true"},
    {"fsdp_version": "3"},
    {"fsdp_sharding_strategy": "6"},
    {"fsdp_auto_wrap_policy": "SOME_WRAP"},
    {"fsdp_min_num_params": "-1", "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP"},
    {"fsdp_offload_params": "perhaps"},
]


@pytest.mark.parametrize("settings", WRONG, ids=str)
def test_what_the_plugin_would_refuse_is_refused_before_the_launch(capsys, monkeypatch, settings):
    flags = [part for name, text in settings.items() for part in (SETTINGS[name].flag, text)]
    assert main(["launch", "--dry-run", "--use_fsdp", *flags, "train.py"]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    for name, text in settings.items():
        monkeypatch.setenv(SETTINGS[name].variable, text)
    with pytest.raises(ConfigError):
        FullyShardedDataParallelPlugin()


ANSWERED = [
    ({"Which version": "1"}, {"sharding_strategy": ShardingStrategy.FULL_SHARD, "sync_module_states": True}),
    (
        {"Which version": "1", "What is to be": "SHARD_GRAD_OP", "one process only": "no"},
        {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP, "cpu_ram_efficient_loading": False},
    ),
    (
        {"Which version": "2"},
        {"reshard_after_forward": True, "auto_wrap_policy": transformer_auto_wrap_policy},
    ),
    (
        {
            "Which version": "2",
            "Reshard the parameters": "no",
            "cut into units": "SIZE_BASED_WRAP",
            "written": "FULL_STATE_DICT",
        },
        {
            "reshard_after_forward": False,
            "auto_wrap_policy": size_based_auto_wrap_policy,
            "min_num_params": 100_000_000,
            "state_dict_type": StateDictType.FULL_STATE_DICT,
        },
    ),
    (
        {
            "Which version": "2",
            "_no_split_modules": "no",
            "Which classes": "A,B",
            "Compute activations": "yes",
            "Keep the inputs": "yes",
        },
        {
            "transformer_cls_names_to_wrap": ["A", "B"],
            "activation_checkpointing": True,
            "activation_checkpointing_offload": True,
        },
    ),
]


@pytest.mark.parametrize(("answers", "fields"), ANSWERED)
def test_what_the_questionnaire_writes_arrives(capsys, monkeypatch, tmp_path, answers, fields):
    path = tmp_path / "answered.yaml"
    write_config(
        path, new_document(fill_in(ByText({"type of machine": "multi-CPU", "(FSDP)": "yes", **answers})))
    )
    environ = environment_of_ranks(capsys, "--config_file", str(path))
    for field, expected in fields.items():
        assert field_of(monkeypatch, "fsdp", environ, field) == expected


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


@pytest.mark.slow
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
