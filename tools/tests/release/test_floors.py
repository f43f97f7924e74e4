import subprocess

import pytest

from tools.release.floors import floors_of, siblings_at_floors
from tools.setup.failures import SetupError
from tools.workspace import read_packages

OPS = "packages/accel-ops/pyproject.toml"
STATE = "packages/accel-state"


def git(checkout, *words):
    subprocess.run(["git", *words], cwd=checkout.root, check=True, capture_output=True)


@pytest.fixture
def released(checkout):
    """A repository with the tag of accel-state 0.1.0, whose source says 0.1.1 by now; accel-ops needs 0.1.0."""
    checkout.replace(OPS, '"numpy>=1.26"', '"numpy>=1.26", "torch>=2.13", "accel-state~=0.1.0"')
    git(checkout, "init", "--quiet")
    git(checkout, "add", ".")
    git(checkout, "-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "--quiet", "-m", "first")
    git(checkout, "tag", "accel-state-v0.1.0")
    checkout.replace(f"{STATE}/src/accel_state/__init__.py", "0.1.0", "0.1.1")
    checkout.replace(f"{STATE}/pyproject.toml", "numpy>=1.26", "numpy>=2.0")
    checkout.write(
        f"{STATE}/CHANGELOG.md", "## 0.1.1 (2031-01-01)\n\n- B.\n\n## 0.1.0 (2030-01-01)\n\n- A.\n"
    )
    return checkout


def at_floors(checkout, name):
    return siblings_at_floors(
        read_packages(checkout.root), name, root=checkout.root, folder=checkout.root / "build"
    )


def test_a_sibling_comes_from_the_tag_of_its_lowest_version(released):
    state, ops = at_floors(released, "accel-ops")
    assert (state.name, state.version) == ("accel-state", "0.1.0")
    assert state.folder == released.root / "build" / "accel-state-v0.1.0" / STATE
    assert ops.folder == released.root / "packages" / "accel-ops"
    assert floors_of([state, ops]) == ["numpy==1.26"]


def test_what_a_sibling_at_its_floor_needs_counts_too(released):
    released.replace(
        "packages/accel/pyproject.toml", '"numpy>=1.26"', '"accel-ops~=0.1.0", "accel-state~=0.1.0"'
    )
    released.replace(OPS, "accel-state~=0.1.0", "accel-state~=0.1.1")
    released.write(f"{STATE}/CHANGELOG.md", "## 0.1.1 (unreleased)\n\n- B.\n")
    state, ops, accel = at_floors(released, "accel")
    assert [state.version, ops.version, accel.version] == ["0.1.1", "0.1.0", "0.1.0"]
    assert state.folder == released.root / STATE


def test_a_version_that_was_never_released_is_that_of_the_checkout_or_an_error(released):
    released.replace(OPS, "accel-state~=0.1.0", "accel-state~=0.1.5")
    with pytest.raises(SetupError, match="no tag `accel-state-v0.1.5`, and the checkout has 0.1.1"):
        at_floors(released, "accel-ops")


def test_between_the_bump_and_the_tags_the_checkout_is_what_the_tags_will_hold(released):
    released.replace(OPS, "accel-state~=0.1.0", "accel-state~=0.1.1")
    state = at_floors(released, "accel-ops")[0]
    assert (state.version, state.folder) == ("0.1.1", released.root / STATE)
    git(released, "tag", "accel-state-v0.1.1")
    assert (
        at_floors(released, "accel-ops")[0].folder == released.root / "build" / "accel-state-v0.1.1" / STATE
    )


def test_a_released_version_without_its_tag_is_an_error(released):
    git(released, "tag", "-d", "accel-state-v0.1.0")
    with pytest.raises(SetupError, match="accel-state 0.1.0 was released, .*`git fetch --tags`"):
        at_floors(released, "accel-ops")


def test_two_floors_for_one_dependency_give_the_higher(checkout):
    checkout.replace(OPS, '"numpy>=1.26"', '"numpy>=2.0"')
    assert floors_of(list(read_packages(checkout.root).values())) == ["numpy==2.0"]


def test_a_dependency_without_a_floor_is_refused(checkout):
    checkout.replace(OPS, '"numpy>=1.26"', '"numpy"')
    with pytest.raises(ValueError, match="has no floor"):
        floors_of([read_packages(checkout.root)["accel-ops"]])
