from __future__ import annotations

import argparse

import pytest

from accel.commands.parsing import (
    CustomArgumentParser,
    clean_option,
    env_command,
    env_command_parser,
    get_config_parser,
    launch_command,
    launch_command_parser,
    to_fsdp2_command,
    to_fsdp2_command_parser,
    tpu_command_launcher,
    tpu_command_parser,
)
from accel_launch.cli import HelpFormatter
from accel_launch.commands.config import default_command_parser, update_command_parser, write_default
from accel_launch.config.file import read_config
from accel_launch.request import interpreter_command
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
    assert f"{' '.join(interpreter_command())} -u train.py -x" in capsys.readouterr().out
    assert parser.parse_args(["config", "default"]).action == "default"
    assert get_config_parser().prog == "accel config"


def test_a_program_sets_what_the_script_gets_and_which_it_is(tmp_path, capfd):
    (tmp_path / "own.py").write_text("import sys; print(sys.argv[1:])\n")
    given = launch_command_parser().parse_args(["--cpu", "--num_processes", "1", "train.py", "0"])
    assert (given.training_script, given.training_script_args) == ("train.py", ["0"])
    given.training_script, given.training_script_args = str(tmp_path / "own.py"), ["--lr", 0.1]
    launch_command(given)
    assert capfd.readouterr().out == "['--lr', '0.1']\n"


def test_numbers_are_numbers_and_switches_are_booleans_as_programs_compare_them():
    numbers = ["--num_processes", "4", "--fsdp_min_num_params", "100", "--monitor_interval", "0.5"]
    given = launch_command_parser().parse_args(
        [*numbers, "--use_fsdp", "--mixed_precision", "no", "train.py"]
    )
    assert (given.num_processes, given.fsdp_min_num_params, given.monitor_interval) == (4, 100, 0.5)
    assert given.use_fsdp is True
    assert given.mixed_precision == "no"


def test_numbers_and_booleans_that_a_program_sets_count(capsys):
    given = launch_command_parser().parse_args(["--cpu", "--dry-run", "train.py", "0"])
    given.num_processes, given.multi_gpu = 2, False
    launch_command(given)
    assert "ranks        2" in capsys.readouterr().out


def test_a_switch_that_is_not_given_is_false():
    given = launch_command_parser().parse_args(["train.py"])
    assert (given.multi_gpu, given.use_fsdp) == (False, False)


def test_other_commands_are_parts_of_programs_too(tmp_path, capsys):
    env_command(env_command_parser().parse_args([]))
    assert "accel-launch" in capsys.readouterr().out
    words = ["--tpu_name", "mine", "--tpu_zone", "here", "--command", "ls", "--debug"]
    tpu_command_launcher(tpu_command_parser().parse_args(words))
    assert "tpu-vm ssh mine --zone here" in capsys.readouterr().out
    old = tmp_path / "old.yaml"
    old.write_text("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n")
    new = tmp_path / "new.yaml"
    subparsers = (parser := argparse.ArgumentParser(prog="mine")).add_subparsers()
    to_fsdp2_command_parser(subparsers)
    given = parser.parse_args(["to-fsdp2", "--config_file", str(old), "--output_file", str(new)])
    given.func(given)
    assert read_config(new).values["fsdp_config.fsdp_version"] == 2


def test_a_config_file_that_is_missing_is_a_missing_file():
    with pytest.raises(FileNotFoundError, match="does not exist"):
        to_fsdp2_command(to_fsdp2_command_parser().parse_args(["--config_file", "none.yaml"]))


def test_a_parser_of_a_program_has_options_in_both_spellings():
    parser = CustomArgumentParser(formatter_class=HelpFormatter)
    parser.add_argument("--num_items", "-n", type=int)
    parser.add_argument_group("more").add_argument("--in_order", action="store_true")
    assert parser.parse_args(["--num-items", "3", "--in-order"]) == argparse.Namespace(
        num_items=3, in_order=True
    )
    assert "--num_items NUM_ITEMS, --num-items NUM_ITEMS, -n NUM_ITEMS" in parser.format_help()


@pytest.mark.parametrize(("option", "name"), [("--use-cpu", "use_cpu"), ("-m", None), ("train.py", None)])
def test_the_name_of_an_option(option, name):
    assert clean_option(option) == name


def test_the_actions_of_the_config_command_can_be_those_of_another_program(tmp_path, capsys):
    parent = argparse.ArgumentParser(add_help=False)
    parent.add_argument("--note")
    program = argparse.ArgumentParser()
    actions = program.add_subparsers()
    get_config_parser(actions)
    default_command_parser(actions, [parent])
    update_command_parser(actions, [parent])
    file = tmp_path / "new.yaml"
    for words in (["default", "--note", "a"], ["update"], ["config", "default"]):
        given = program.parse_args([*words, "--config_file", str(file)])
        assert given.func(given) == 0
    assert [line.split("`")[2] for line in capsys.readouterr().out.splitlines()] == [
        ".",
        " is up to date.",
        " already; it is left as it is.",
    ]


def test_the_default_config_is_written_where_the_arguments_of_accelerate_specify(tmp_path):
    write_default(argparse.Namespace(mixed_precision="bf16", save_location=str(tmp_path / "new.yaml")))
    assert "mixed_precision: bf16" in (tmp_path / "new.yaml").read_text()
