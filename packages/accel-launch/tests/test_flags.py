"""Every flag of ``accel launch``, followed from the command line to the environment or argv of a child."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from accel_launch.cli import main
from accel_launch.options import OPTION_GROUPS, OPTIONS, SWITCHES

FLAGS = [setting for setting in OPTIONS if setting.flag]
TO_RANKS = [setting for setting in FLAGS if setting.variable and setting.name not in ("num_processes",)]

# What must be asked for as well, so that a flag has an effect.
CONTEXT = {
    "FSDP": ["--use_fsdp"],
    "DeepSpeed": ["--use_deepspeed"],
    "DeepSpeed on several machines": ["--use_deepspeed"],
    "Megatron-LM": ["--use_megatron_lm"],
    "parallelism sizes": ["--use_parallelism_config"],
    "8-bit training": ["--mixed_precision", "fp8"],
    "compilation": ["--dynamo_backend", "inductor"],
}
GROUP_OF = {setting.name: heading for heading, group in OPTION_GROUPS.items() for setting in group}

# Flags that need a device, and which others they need.
ON_DEVICES = {
    "gpu_ids": ({}, "1"),
    "cpu_affinity": ({}, "true"),
    "tpu_name": ({"tpu": "true"}, "pod-1"),
    "downcast_bf16": ({"tpu": "true"}, "true"),
}

# Flags that never reach the ranks as a variable: the other flags they need, and what the plan then says.
IN_PLAN = {
    "num_processes": (["--cpu"], "3", '"num_ranks": 3'),
    "master_addr": (["--cpu", "--num_machines", "2"], "10.9.8.7", "10.9.8.7"),
    "master_port": (["--cpu", "--num_processes", "2"], "29511", '"port": 29511'),
    "num_cpu_threads_per_process": (["--cpu"], "3", '"OMP_NUM_THREADS": "3"'),
    "grace_period_s": (["--cpu"], "7.5", '"grace_period_s": 7.5'),
    "max_restarts": (["--cpu", "--num_processes", "2"], "4", "--max-restarts=4"),
    "monitor_interval": (
        ["--cpu", "--num_processes", "2", "--max_restarts", "1"],
        "0.5",
        "--monitor-interval=0.5",
    ),
    "role": (["--cpu", "--num_processes", "2"], "trainer", "--role=trainer"),
    "tee": (["--cpu", "--num_processes", "2"], "3", "--tee=3"),
    "log_dir": (["--cpu", "--num_processes", "2"], "logs", "--log-dir="),
    "fp8_override_linear_precision": (
        ["--cpu", "--mixed_precision", "fp8"],
        "true,false,true",
        '"FP8_OVERRIDE_WGRAD": "true"',
    ),
}


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for setting in OPTIONS:
        if setting.variable:
            monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf_home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return tmp_path


@pytest.fixture
def planned(capsys):
    def plan(*arguments: str) -> str:
        assert main(["launch", "--dry-run", "--json", *arguments, "train.py"]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""  # nothing that was given is without effect
        return captured.out

    return plan


def given(setting, text: str, flag: str) -> list[str]:
    return [flag] if setting.name in SWITCHES else [flag, text]


HERE = [setting for setting in TO_RANKS if setting.name not in {*IN_PLAN, *ON_DEVICES}]


@pytest.mark.parametrize("setting", HERE, ids=lambda setting: setting.name)
def test_a_flag_reaches_every_rank_as_its_variable(planned, texts_for, setting):
    text = texts_for(setting)[0] if setting.name not in SWITCHES else "true"
    context = ["--cpu", "--num_processes", "2", *CONTEXT.get(GROUP_OF[setting.name], [])]
    for flag in (setting.flag, "--" + setting.flag[2:].replace("_", "-")):
        plan = json.loads(planned(*context, *given(setting, text, flag)))
        expected = setting.text_of(setting.parse(text))
        assert {process["environ"].get(setting.variable) for process in plan["processes"]} == {expected}


@pytest.mark.parametrize("name", ON_DEVICES)
def test_a_flag_for_devices_that_are_not_here_reaches_the_ranks_too(request_for, name):
    (setting,) = (setting for setting in FLAGS if setting.name == name)
    others, text = ON_DEVICES[name]
    request = request_for(flags={**others, name: text}, gpus=("0", "1"))
    assert request.environ()[setting.variable] == text


@pytest.mark.parametrize("name", IN_PLAN)
def test_a_flag_of_the_launcher_shows_in_the_plan(planned, name):
    (setting,) = (setting for setting in FLAGS if setting.name == name)
    context, text, seen = IN_PLAN[name]
    for flag in (setting.flag, "--" + setting.flag[2:].replace("_", "-")):
        assert seen in planned(*context, *given(setting, text, flag))


@pytest.mark.parametrize("setting", FLAGS, ids=lambda setting: setting.name)
def test_a_flag_reaches_the_request_in_both_spellings(request_for, texts_for, setting, capsys):
    """Through the real command line, for those too whose launcher needs what is not here."""
    text = "true" if setting.name in SWITCHES else texts_for(setting)[0]
    for flag in (setting.flag, "--" + setting.flag[2:].replace("_", "-")):
        assert main(["config", "show", "--json", *given(setting, text, flag)]) == 0
        shown = json.loads(capsys.readouterr().out)[setting.name]
        expected = "(secret)" if setting.name.startswith("aws") else setting.text_of(setting.parse(text))
        assert (shown["value"], shown["source"]) == (expected, "flag")


def test_switches_are_the_flags_that_take_no_value(capsys):
    for setting in FLAGS:
        takes_none = main(["launch", "--dry-run", setting.flag]) == 2
        message = capsys.readouterr().err
        assert takes_none
        # A switch leaves nothing to launch; any other flag misses its value.
        assert ("nothing to launch" in message) == (setting.name in SWITCHES), setting.flag
