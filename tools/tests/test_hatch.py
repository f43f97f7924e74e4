"""The hatch environments of the root ``pyproject.toml``."""

import tomllib

import pytest

from tools.workspace import ROOT, read_packages, with_siblings

PACKAGES = read_packages()


@pytest.fixture(scope="module")
def isolated():
    """The table of the environment `isolated`."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["envs"]["isolated"]


def test_isolated_knows_every_package(isolated):
    assert sorted(isolated["matrix"][0]["package"]) == sorted(PACKAGES)


@pytest.mark.parametrize("name", PACKAGES)
def test_isolated_installs_a_package_with_the_siblings_it_needs_and_no_others(isolated, name):
    members = isolated["overrides"]["matrix"]["package"]["workspace"]["members"]
    installed = {member["value"] for member in members if name in member["if"]}
    assert installed == {f"packages/{package.name}" for package in with_siblings(PACKAGES, name)}
