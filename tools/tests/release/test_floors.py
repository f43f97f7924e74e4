import subprocess

import pytest

from tools.release.floors import floors_of, with_siblings_at_floors
from tools.setup.running import SetupError
from tools.workspace import read_packages

OPS = "packages/accel-ops/pyproject.toml"
STATE = "packages/accel-state"


@pytest.fixture
def released(checkout):
    """A repository with the tag of accel-state 0.1.0, whose source says 0.1.1 by now; accel-ops needs 0.1.0."""
    checkout.replace(OPS, '"numpy>=1.26"', '"numpy>=1.26", "torch>=2.13", "accel-state~=0.1.0"')
    identity = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    commit = [*identity, "commit", "--quiet", "-m", "first"]
    for words in (["init", "--quiet"], ["add", "."], commit, ["tag", "accel-state-v0.1.0"]):
        subprocess.run(["git", *words], cwd=checkout.root, check=True, capture_output=True)
    checkout.replace(f"{STATE}/src/accel_state/__init__.py", "0.1.0", "0.1.1")
    checkout.replace(f"{STATE}/pyproject.toml", "numpy>=1.26", "numpy>=2.0")
    return checkout


def at_floors(checkout, name):
    packages = read_packages(checkout.root)
    return {each.name: each for each in with_siblings_at_floors(packages, name, root=checkout.root)}


def test_a_sibling_comes_from_the_tag_of_its_lowest_version(released):
    chosen = at_floors(released, "accel-ops")
    assert chosen["accel-state"].version == "0.1.0"
    assert chosen["accel-state"].folder != released.root / STATE
    assert chosen["accel-ops"].folder == released.root / "packages" / "accel-ops"
    assert floors_of(chosen.values()) == ["numpy==1.26"]


def test_what_a_sibling_at_its_floor_needs_counts_too(released):
    dependencies = '"accel-ops~=0.1.0", "accel-state~=0.1.0"'
    released.replace("packages/accel/pyproject.toml", '"numpy>=1.26"', dependencies)
    released.replace(OPS, "accel-state~=0.1.0", "accel-state~=0.1.1")
    chosen = at_floors(released, "accel")
    assert {name: each.version for name, each in chosen.items()} == {
        "accel": "0.1.0", "accel-ops": "0.1.0", "accel-state": "0.1.1",
    }  # fmt: skip
    assert chosen["accel-state"].folder == released.root / STATE


def test_a_version_that_was_never_released_is_that_of_the_checkout_or_an_error(released):
    released.replace(OPS, "accel-state~=0.1.0", "accel-state~=0.1.5")
    with pytest.raises(SetupError, match="no tag `accel-state-v0.1.5`.* the\n? ?checkout has 0.1.1"):
        at_floors(released, "accel-ops")


def test_two_floors_for_one_dependency_give_the_higher(checkout):
    checkout.replace(OPS, '"numpy>=1.26"', '"numpy>=2.0"')
    assert floors_of(read_packages(checkout.root).values()) == ["numpy==2.0"]
