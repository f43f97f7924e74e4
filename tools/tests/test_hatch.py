"""The hatch environments of the root ``pyproject.toml``."""

import tomllib

import pytest

from tools.workspace import ROOT, read_packages

ENVIRONMENTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["envs"]


@pytest.mark.parametrize("name", ["alone", "isolated"])
def test_every_package_is_in_the_matrix(name):
    assert sorted(ENVIRONMENTS[name]["matrix"][0]["package"]) == sorted(read_packages())


def test_the_environment_of_wheels_has_every_package():
    packages = read_packages()
    assert packages["accel"].required_names >= packages.keys() - {"accel"}
