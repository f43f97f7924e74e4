from __future__ import annotations

import argparse

import pytest

from accel_launch import get_config_parser, launch_command, launch_command_parser
from accel_launch.interpreter import interpreter_command
from accel_state.errors import ConfigError


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import sys; sys.exit(int(sys.argv[2]))\n")


def test_a_program_launches_as_a_part_of_what_it_does(capfd):
    parser = launch_command_parser()
    launch_command(parser.parse_args(["--cpu", "-q", "train.py", "--code", "0"]))
    with pytest.raises(SystemExit) as ending:
        launch_command(parser.parse_args(["--cpu", "-q", "train.py", "--code", "3"]))
    assert ending.value.code == 3


def test_what_cannot_be_started_is_an_error_of_ours():
    with pytest.raises(ConfigError, match="The script `none.py` does not exist"):
        launch_command(launch_command_parser().parse_args(["none.py"]))


def test_both_are_subcommands_of_another_program_too(capsys):
    parser = argparse.ArgumentParser(prog="mine")
    subparsers = parser.add_subparsers()
    launch_command_parser(subparsers)
    get_config_parser(subparsers)
    given = parser.parse_args(["launch", "--cpu", "--dry-run", "train.py", "-x"])
    given.func(given)
    assert f"{' '.join(interpreter_command())} train.py -x" in capsys.readouterr().out
    assert parser.parse_args(["config", "default"]).action == "default"
    assert get_config_parser().prog == "accel config"
