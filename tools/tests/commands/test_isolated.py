import pytest

from tools.commands.isolated import floors_of, isolated_environment
from tools.front_door import build_parser
from tools.setup.environment import CONSTRAINTS
from tools.setup.failures import SetupError
from tools.workspace import read_packages


def test_floors_pin_what_is_declared_and_leave_siblings_and_torch_alone(checkout):
    path = "packages/accel-ops/pyproject.toml"
    checkout.replace(path, '"numpy>=1.26"', '"numpy>=1.26", "torch>=2.13", "accel-state~=0.1"')
    packages = read_packages(checkout.root)
    needed = isolated_environment(packages, "accel-ops", floors=True)
    assert list(needed.extra_constraints) == ["numpy==1.26"]
    assert [package.name for package in needed.packages] == ["accel-state", "accel-ops"]


def test_two_floors_for_one_dependency_are_refused(checkout):
    checkout.replace("packages/accel-ops/pyproject.toml", '"numpy>=1.26"', '"numpy>=2.0"')
    with pytest.raises(ValueError, match="`numpy` has two floors"):
        floors_of(list(read_packages(checkout.root).values()))


def test_a_dependency_without_a_floor_is_refused(checkout):
    checkout.replace("packages/accel-ops/pyproject.toml", '"numpy>=1.26"', '"numpy"')
    with pytest.raises(ValueError, match="has no floor"):
        floors_of([read_packages(checkout.root)["accel-ops"]])


def test_another_release_of_torch_has_an_environment_of_its_own():
    packages = read_packages()
    usual = isolated_environment(packages, "accel-state", floors=True)
    other = isolated_environment(packages, "accel-state", floors=True, torch="2.8")
    assert usual.constraints == CONSTRAINTS
    assert "torch==2.8.*" in other.constraints.read_text().splitlines()
    assert other.folder != usual.folder
    assert other.inputs() != usual.inputs()
    assert other.extra_constraints == usual.extra_constraints


def test_a_release_below_the_declared_range_is_refused_before_anything_is_made():
    arguments = build_parser().parse_args(["isolated", "--torch", "2.1", "accel-state"])
    with pytest.raises(SetupError, match="`--torch 2.1` is below the range that the packages declare"):
        arguments.run(arguments)
