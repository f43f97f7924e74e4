from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from accel_launch.config.file import PLAIN_KEYS, SECTIONS
from accel_launch.options import OPTIONS, add_options, given_flags
from accel_state.environment import SETTINGS

MODULE = """
from accel_launch import LaunchPlan, ProcessPlan
from accel_state.environment import Setting
from accel_state.environment.parsers import boolean, count

SETTINGS = (
    Setting("pigeon_count", "PIGEON_COUNT", count, 1, "Number of pigeons.", "--pigeons", "pigeon_config.count"),
    Setting("pigeon_homing", "", boolean, False, "Homing.", "--homing", "pigeon_config.homing", is_switch=True),
)


class PigeonLauncher:
    name = "pigeon"

    def accepts(self, request):
        return request.is_given("pigeon_count")

    def plan(self, request):
        words = ("echo", "coo", str(request.value("pigeon_count")), str(request.value("pigeon_homing")))
        return LaunchPlan(self.name, (ProcessPlan(words, request.cwd),), num_ranks=1)

    def run(self, plan):
        print(*plan.processes[0].argv[1:])
        return 7


class CrowLauncher(PigeonLauncher):
    name = "crow"
"""
ENTRY_POINTS = """
[accel.launchers]
pigeon = birds:PigeonLauncher
crow = birds:CrowLauncher

[accel.launcher_settings]
pigeon = birds:SETTINGS
"""


def install(folder: Path, name: str, module: str, entry_points: str) -> None:
    (folder / f"{name}.py").write_text(module)
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entry_points)


@pytest.fixture
def birds(tmp_path, monkeypatch):
    """Run `accel launch` of a script where the package is installed."""
    packages = tmp_path / "packages"
    packages.mkdir()
    install(packages, "birds", MODULE, ENTRY_POINTS)
    monkeypatch.setenv("PYTHONPATH", str(packages), prepend=":")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("ACCEL_LAUNCHER", raising=False)
    (tmp_path / "train.py").write_text("print('trained')\n")

    def launch(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "accel_launch", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    launch.packages = packages
    launch.folder = tmp_path
    return launch


def test_it_starts_what_it_accepts_before_ours_and_its_flags_are_parsed(birds):
    done = birds("launch", "--pigeons", "3", "--homing", "train.py")
    assert (done.returncode, done.stdout) == (7, "coo 3 True\n")
    assert done.stderr == (
        "warning: `--pigeons` has no effect without `--launcher pigeon`.\n"
        "warning: `--homing` has no effect without `--launcher pigeon`.\n"
    )


def test_it_is_chosen_by_name(birds):
    done = birds("launch", "--launcher", "pigeon", "train.py")
    assert (done.returncode, done.stdout, done.stderr) == (7, "coo 1 False\n", "")
    done = birds("launch", "--launcher", "single", "--pigeons", "2", "train.py")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr == "warning: `--pigeons` has no effect without `--launcher pigeon`.\n"


def test_its_settings_are_in_the_config_file_and_in_what_config_shows(birds):
    (birds.folder / "c.yaml").write_text("launcher: pigeon\npigeon_config:\n  count: 4\n  homing: true\n")
    assert birds("launch", "--config_file", "c.yaml", "train.py").stdout == "coo 4 True\n"
    shown = json.loads(birds("config", "show", "--config_file", "c.yaml", "--json").stdout)
    assert shown["pigeon_count"] == {
        "value": "4",
        "source": "config file",
        "given_as": "pigeon_config.count",
    }


def test_its_flags_are_in_the_help(birds):
    help_text = birds("launch", "--help", "pigeon").stdout
    heading, _, listed = help_text.partition("launcher pigeon:\n")
    assert heading
    assert listed.split()[:5] == ["--pigeons", "N", "Number", "of", "pigeons."]
    assert "--homing " in listed


def test_an_unknown_name_is_refused_with_the_known_ones(birds):
    done = birds("launch", "--launcher", "pidgeon", "train.py")
    assert done.returncode == 1
    assert "Unknown launcher `pidgeon`. Known: crow, " in done.stderr
    assert "Did you mean `pigeon`?" in done.stderr


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            "(Setting('nest_count', '', count, 1, '', '--num_processes', 'nest_count'),)",
            "The settings of the launcher `nest` have a name that is taken: `--num_processes`. Its package",
        ),
        ("('--nests',)", "The settings of the launcher `nest` must be `Setting` objects, but one is a str."),
    ],
)
def test_settings_that_cannot_be_used_are_refused(birds, settings, problem):
    module = f"from birds import Setting, count\nSETTINGS = {settings}\n"
    install(birds.packages, "nest", module, "[accel.launcher_settings]\nnest = nest:SETTINGS\n")
    done = birds("launch", "train.py")
    assert done.returncode == 1
    assert f"error: {problem}" in done.stderr


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(allow_abbrev=False)
    add_options(made)
    return made


def test_flags_that_are_not_given_are_not_there():
    assert given_flags(parser().parse_args([])) == {}


def test_switches_take_no_value_and_others_do():
    flags = given_flags(parser().parse_args(["--cpu", "--num_processes", "2", "--mixed_precision=bf16"]))
    assert flags == {"use_cpu": "true", "num_processes": "2", "mixed_precision": "bf16"}


def test_what_reaches_the_ranks_comes_from_the_table_of_settings_except_the_gpus(request_for):
    own = {setting.name for setting in OPTIONS if SETTINGS.get(setting.name) != setting}
    with_variable = {
        setting.name: setting.variable for setting in OPTIONS if setting.name in own and setting.variable
    }
    assert set(with_variable) == {"gpu_ids", "launcher", "ray_address"}
    request = request_for(environ=dict.fromkeys(with_variable.values(), "1"))
    assert with_variable.values() & request.environ().keys() == {"CUDA_VISIBLE_DEVICES"}


def test_every_config_key_of_every_setting_is_known_to_the_config_file():
    unknown = []
    for setting in (*SETTINGS.values(), *OPTIONS):
        section, _, key = (setting.config_key or "").rpartition(".")
        if setting.config_key and key not in (SECTIONS[section] if section else PLAIN_KEYS):
            unknown.append(setting.config_key)
    assert unknown == []


def test_help_names_the_defaults_that_a_launch_adds():
    text = " ".join(parser().format_help().split())
    assert "Total number of processes. Default: one for each GPU, or 1." in text
    assert "--mixed_precision {no,fp16,bf16,fp8}" in text
    assert "--main_process_port PORT" in text
