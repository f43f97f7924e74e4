"""The flags of the commands are what people type: a change of one is a change of ``flags.txt`` in the same commit."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from accel_launch.cli import make_parser
from accel_launch.commands.config import command as config
from accel_launch.commands.env import command as env
from accel_launch.commands.launch import command as launch
from accel_launch.commands.tpu_config import command as tpu_config
from accel_launch.options import OPTIONS

SNAPSHOT = Path(__file__).with_name("flags.txt")
COMMANDS = {"config": config, "env": env, "launch": launch, "tpu-config": tpu_config}


def flags_of(name: str, parser: argparse.ArgumentParser) -> list[str]:
    lines = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner, its_parser in action.choices.items():
                lines += flags_of(f"{name} {inner}", its_parser)
        elif action.option_strings:
            takes = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
            lines.append(f"{name}: {', '.join(action.option_strings)}{takes}")
    return lines


def present() -> str:
    lines = []
    for name, command in COMMANDS.items():
        lines += flags_of(name, make_parser(name, command))
    return "".join(f"{line}\n" for line in lines)


def test_flags_are_as_recorded():
    assert present() == SNAPSHOT.read_text(), (
        f"if this is meant, write the text of `present()` to {SNAPSHOT.name} and a line to the changelog"
    )


@pytest.mark.parametrize("attribute", ["name", "flag", "config_key"])
def test_no_two_settings_share_a_name(attribute):
    given = [getattr(setting, attribute) for setting in OPTIONS if getattr(setting, attribute)]
    assert len(given) == len(set(given))
