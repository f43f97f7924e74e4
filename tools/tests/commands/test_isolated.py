import pytest

from tools.commands.isolated import isolated_environment
from tools.front_door import build_parser
from tools.setup.environment import CONSTRAINTS
from tools.setup.failures import SetupError
from tools.workspace import read_packages


def test_another_release_of_torch_has_an_environment_of_its_own():
    packages = read_packages()
    usual = isolated_environment(packages, "accel-state", floors=True)
    other = isolated_environment(packages, "accel-state", floors=True, torch="2.9")
    assert usual.constraints == CONSTRAINTS
    assert "torch==2.9.*" in other.constraints.read_text().splitlines()
    assert other.folder != usual.folder
    assert other.inputs() != usual.inputs()
    assert other.extra_constraints == usual.extra_constraints


def test_a_release_below_the_declared_range_is_refused_before_anything_is_made():
    arguments = build_parser().parse_args(["isolated", "--torch", "2.1", "accel-state"])
    with pytest.raises(SetupError, match="`--torch 2.1` is below the range that the packages declare"):
        arguments.run(arguments)
