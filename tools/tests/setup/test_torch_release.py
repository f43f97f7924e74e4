import pytest

from tools.setup.failures import SetupError
from tools.setup.torch_release import constraints_with_torch
from tools.workspace import read_packages


@pytest.fixture
def constraints_for(checkout):
    """Return a function that gives the constraints for one release of torch, as lines."""
    for name, floor in (("accel-state", "2.9"), ("accel-ops", "2.10")):
        path = f"packages/{name}/pyproject.toml"
        checkout.replace(path, '"numpy>=1.26"', f'"torch>={floor}"')
    constraints = checkout.write("tools/constraints.txt", "# all\ntorch==2.13.0\nruff==0.17.5\n")

    def lines(release):
        packages = read_packages(checkout.root).values()
        copy = constraints_with_torch(
            release, packages, constraints=constraints, folder=checkout.root / "build"
        )
        return copy.read_text().splitlines()

    return lines


@pytest.mark.parametrize(("release", "pin"), [("2.10", "torch==2.10.*"), ("2.11.1", "torch==2.11.1")])
def test_the_release_takes_the_place_of_the_pin_and_of_nothing_else(constraints_for, release, pin):
    assert constraints_for(release) == ["# all", pin, "ruff==0.17.5"]


@pytest.mark.parametrize("release", ["2.9", "2.9.1", "1.13"])
def test_a_release_below_any_package_is_refused(constraints_for, release):
    with pytest.raises(SetupError, match=rf"`--torch {release}` is below .*\(torch>=2\.10\)\. Name 2\.10 or"):
        constraints_for(release)


@pytest.mark.parametrize("release", ["new", "2", ">=2.9", "2.9.0+cpu"])
def test_what_is_no_release_is_refused(constraints_for, release):
    with pytest.raises(SetupError, match="takes a release such as 2.9 or 2.9.0, got"):
        constraints_for(release)
