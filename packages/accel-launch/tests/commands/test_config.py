from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from accel_launch.cli import config, main
from accel_launch.config.file import read_config
from accel_launch.options import OPTIONS
from tools.site.reference import settings_page


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf_home"))
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    return tmp_path / "hf_home" / "accelerate" / "default_config.yaml"


def piped(text: str, *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "accel_launch", "config", *arguments],
        input=text,
        env={
            "HF_HOME": str(home),
            "TERM": "xterm",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        },
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_answers_can_be_piped(tmp_path):
    finished = piped("\nmulti-CPU\n\n\n\n\n\n\n2\nbf16\n", home=tmp_path)
    assert (finished.returncode, finished.stderr) == (0, "")
    path = tmp_path / "accelerate" / "default_config.yaml"
    assert f"The configuration is saved at `{path}`." in finished.stdout
    values = read_config(path).values
    assert (values["distributed_type"], values["num_processes"], values["mixed_precision"]) == (
        "MULTI_CPU",
        2,
        "bf16",
    )
    assert "\x1b" not in finished.stdout


def test_answers_that_end_too_soon_are_an_error_and_no_file(tmp_path):
    finished = piped("\n", "--config_file", str(tmp_path / "c.yaml"), home=tmp_path)
    assert finished.returncode == 1
    assert (
        finished.stderr
        == "error: The input ended before there was an answer to: Which type of machine are you using? "
        "Run `accel config` in a terminal, or `accel config default`, which asks nothing.\n"
    )
    assert not (tmp_path / "c.yaml").exists()


def test_default_writes_once(own_place, capsys):
    assert main(["config", "default", "--mixed_precision", "bf16"]) == 0
    assert f"The configuration is saved at `{own_place}`." in capsys.readouterr().out
    assert main(["config", "default"]) == 0
    assert "it is left as it is" in capsys.readouterr().out
    assert read_config(own_place).values["mixed_precision"] == "bf16"


@pytest.mark.parametrize(
    "order", [["default", "--config_file", "FILE"], ["--config-file", "FILE", "default"]]
)
def test_the_file_may_be_named_before_or_after_the_action(tmp_path, order):
    path = tmp_path / "c.json"
    assert main(["config", *[str(path) if word == "FILE" else word for word in order]]) == 0
    assert json.loads(path.read_text())["mixed_precision"] == "no"


def test_update_writes_the_newer_names_and_keeps_what_is_there(tmp_path, capsys):
    path = tmp_path / "c.yaml"
    path.write_text(
        "num_machines: 3\ndynamo_backend: INDUCTOR\nfsdp_config: {fsdp_backward_prefetch_policy: NO_PREFETCH}\n"
    )
    assert main(["config", "update", "--config_file", str(path)]) == 0
    assert capsys.readouterr().out == f"The configuration at `{path}` is up to date.\n"
    values = read_config(path).values
    assert values["num_machines"] == 3
    assert values["dynamo_config.dynamo_backend"] == "INDUCTOR"
    assert "fsdp_backward_prefetch: NO_PREFETCH" in path.read_text()


OPEN = "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 1\n  fsdp_sharding_strategy: FULL_SHARD\n"


@pytest.mark.parametrize("command", [["config", "update"], ["to-fsdp2", "--overwrite"]])
def test_no_command_decides_what_a_file_leaves_open(tmp_path, capsys, command):
    """One process in a file comes before one for each GPU."""
    path = tmp_path / "c.yaml"
    path.write_text(OPEN)
    assert main([*command, "--config_file", str(path)]) == 0
    capsys.readouterr()
    assert set(yaml.safe_load(path.read_text())) == {"distributed_type", "fsdp_config"}
    assert main(["config", "show", "--all", "--json", "--config_file", str(path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    names = ("num_processes", "num_machines", "machine_rank", "mixed_precision")
    assert {name: shown[name]["source"] for name in names} == dict.fromkeys(names, "default")


def test_show_lists_the_settings_that_the_reference_page_leaves_out_as_the_page_promises(capsys):
    assert main(["config", "show", "--all", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out).keys()
    page = settings_page()
    left_out = {setting.name for setting in OPTIONS if f"| `{setting.variable}` |" not in page}
    launching = {"launcher", "ray_address", "slurm_options", "hosts", "kubernetes_image", "tee", "tpu_zone"}
    assert launching <= left_out
    assert {setting.name for setting in OPTIONS} <= shown
    assert "`accel config show --all` lists\nevery setting of a launch with its value" in page


def test_update_writes_to_the_target_of_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / "c.yaml", tmp_path / "link.yaml"
    real.write_text("dynamo_backend: INDUCTOR\n")
    link.symlink_to(real)
    assert main(["config", "update", "--config_file", str(link)]) == 0
    assert link.is_symlink()
    assert yaml.safe_load(real.read_text()) == {"dynamo_config": {"dynamo_backend": "INDUCTOR"}}
    assert [path.name for path in real.parent.iterdir()] == ["c.yaml"]


def test_update_without_a_file_explains_what_to_do(capsys):
    assert main(["config", "update"]) == 1
    assert (
        capsys.readouterr().err
        == "error: There is no config file to update. Write one with `accel config`.\n"
    )


def test_update_leaves_a_file_it_does_not_understand_unchanged(tmp_path, capsys):
    path = tmp_path / "c.yaml"
    path.write_text("num_procs: 3\n")
    assert main(["config", "update", "--config_file", str(path)]) == 1
    assert "Unknown key `num_procs`" in capsys.readouterr().err
    assert path.read_text() == "num_procs: 3\n"


def test_show_names_who_set_each_value(tmp_path, capsys, monkeypatch):
    path = tmp_path / "c.yaml"
    path.write_text("mixed_precision: fp16\nnum_processes: 2\n")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert main(["config", "show", "--config_file", str(path), "--cpu"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == f"config file: {path}"
    assert "num_processes 2 config file (num_processes)" in lines
    assert "use_cpu true flag (--cpu)" in lines
    assert "mixed_precision bf16 environment (ACCELERATE_MIXED_PRECISION)" in lines


def test_a_wrong_action_is_a_usage_error(capsys):
    assert config(["shwo"]) == 2
    assert "invalid choice: 'shwo'" in capsys.readouterr().err


def test_a_template_is_printed(capsys):
    assert main(["config", "--template", "fsdp2"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["fsdp_config"]["fsdp_version"] == 2


def test_templates_are_listed_with_their_purposes(capsys):
    assert main(["config", "--template"]) == 0
    assert "\nmulti_node     DDP on 2 machines of 8 GPUs" in capsys.readouterr().out


def test_a_template_overwrites_no_file(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text("num_machines: 3\n")
    assert main(["config", "--template", "fsdp2", "--config_file", str(path)]) == 1
    assert f"`{path}` exists already." in capsys.readouterr().err
    assert path.read_text() == "num_machines: 3\n"


def test_a_template_and_an_action_exclude_each_other(capsys):
    assert main(["config", "--template", "fsdp2", "show"]) == 1
    assert "`--template` and `show` exclude each other" in capsys.readouterr().err
