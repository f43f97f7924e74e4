from __future__ import annotations

import json
import platform
from importlib.metadata import version

import pytest

from accel_launch.cli import main
from accel_launch.commands.env import as_text, environment_report
from accel_launch.machine import present_accelerators


def test_report_names_versions_and_settings(tmp_path):
    (tmp_path / "c.yaml").write_text("num_processes: 2\n")
    report = environment_report(
        str(tmp_path / "c.yaml"), environ={"ACCELERATE_USE_CPU": "true", "PASSWORD": "x"}
    )
    assert report["packages"]["accel-launch"] == version("accel-launch")
    assert report["packages"]["torch"] == version("torch")
    assert report["python"].startswith(platform.python_version())
    assert report["cpu_cores"] >= 1
    assert isinstance(report["accelerators"], dict)
    assert report["variables"] == {"ACCELERATE_USE_CPU": "true"}  # and nothing that may be secret
    assert report["config_file"] == str(tmp_path / "c.yaml")
    assert report["config"] == {"num_processes": 2}


def test_a_config_file_that_is_broken_is_a_part_of_the_report(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("a: [\n")
    assert main(["env", "--config_file", str(tmp_path / "c.yaml")]) == 0
    assert "- config file: The config file `" in (told := capsys.readouterr().out)
    assert "is not valid YAML" in told


def test_text_is_a_list_to_paste():
    text = as_text({"packages": {"torch": "2.13.0", "numpy": None}, "config_file": None, "config": {}})
    assert text == "- packages:\n    - torch: 2.13.0\n    - numpy: none\n- config file: none\n- config: none"


def test_command_prints_text_or_json(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert main(["env"]) == 0
    assert "- config file: none" in capsys.readouterr().out
    (tmp_path / "c.yaml").write_text("num_processes: 2\n")
    assert main(["env", "--json", "--config_file", str(tmp_path / "c.yaml")]) == 0
    assert json.loads(capsys.readouterr().out)["config"] == {"num_processes": 2}


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_no_secret_is_shown(tmp_path, capsys, form):
    (tmp_path / "c.yaml").write_text(
        "env: [WANDB_API_KEY=hush-env]\nnum_processes: 2\nadditional_args: {environment: {TOKEN: hush-argument}}\n"
    )
    assert main(["env", *form, "--config_file", str(tmp_path / "c.yaml")]) == 0
    told = capsys.readouterr().out
    assert "hush" not in told
    assert "(secret)" in told
    assert "num_processes" in told


def test_all_packages_of_accel_are_listed():
    packages = environment_report(None, environ={"HF_HOME": "/missing"})["packages"]
    assert len([name for name in packages if name.partition("-")[0] == "accel"]) == 9
    assert packages["accel-checkpoint"] == version("accel-checkpoint")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_nothing_of_commands_addresses_and_variables_that_is_secret_is_shown(
    tmp_path, capsys, monkeypatch, form
):
    (tmp_path / "c.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ntpu_env: [HF_TOKEN=hush]\ncommands: [export T=hush, ls]\n"
        "main_process_ip: http://user:hush@host\n"
    )
    monkeypatch.setenv("ACCELERATE_PROXY", "http://user:hush@host")
    monkeypatch.setenv("ACCELERATE_AUTH", "hush")
    assert main(["env", *form, "--config_file", str(tmp_path / "c.yaml")]) == 0
    told = capsys.readouterr().out
    assert "hush" not in told
    assert "(lines: 2)" in told
    assert "ACCELERATE_AUTH" in told


def test_gpus_are_named_with_memory_driver_and_libraries(tmp_path, monkeypatch, capsys):
    program = tmp_path / "nvidia-smi"
    gpu = "NVIDIA H200, 143771 MiB\\n"
    told = f"case $1 in *=name*) printf '{gpu}{gpu}';; *) echo 550.54.15;; esac"
    program.write_text(f"#!/bin/sh\n{told}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["env", "--json"]) == 0
    gpus = json.loads(capsys.readouterr().out)["nvidia"]
    assert gpus.pop("GPU 0") == gpus.pop("GPU 1") == "NVIDIA H200, 143771 MiB"
    assert gpus.pop("driver") == "550.54.15"
    assert sorted(gpus) == ["cuda", "cudnn", "nccl"]  # as this torch has them


def test_a_machine_without_nvidia_gpus_has_none(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["env", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nvidia"] is None or present_accelerators()
