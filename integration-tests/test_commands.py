"""The commands that the packages bring along, as `accel` finds them."""

from collections import Counter
from importlib.metadata import entry_points

import pytest

from accel_launch.cli import main

COMMANDS = sorted({entry.name for entry in entry_points(group="accel.commands")})


def test_every_command_belongs_to_one_package():
    owners = Counter(
        (entry.name, entry.dist.name)
        for entry in entry_points(group="accel.commands")
        if entry.dist is not None
    )
    names = Counter(name for name, _ in owners)
    assert {"checkpoint", "config", "env", "estimate-memory", "launch", "test"} <= names.keys()
    assert max(names.values()) == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name, capsys):
    assert main([name, "--help"]) == 0
    assert f"accel {name}" in capsys.readouterr().out
