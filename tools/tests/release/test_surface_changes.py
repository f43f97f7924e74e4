import subprocess

import pytest

from tools.release.surface_changes import names_of, require_announced_removals
from tools.setup.failures import SetupError
from tools.workspace import read_packages

DATA = "packages/accel-data"
SURFACE = """\
# The public surface of accel-data.
LIMIT: int
class Loader(Base)
    def __init__(self, size: int = 1) -> None
    property length -> int
    name: str
def load(path: str) -> None
gather = accel_ops.gather
"""


def git(checkout, *words):
    identity = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *identity, *words], cwd=checkout.root, check=True, capture_output=True)


@pytest.fixture
def removals(checkout):
    """Return a function that compares the surface without a line with that of 0.1.0, which was tagged."""
    checkout.write(f"{DATA}/surface.txt", SURFACE)
    git(checkout, "init", "--quiet")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "-m", "first")
    for tag in ("accel-data-v0.0.9", "accel-data-v0.1.0"):
        git(checkout, "tag", tag)

    def compared(*lost, version, notes=""):
        checkout.replace(f"{DATA}/src/accel_data/__init__.py", "0.1.0", version)
        kept = [line for line in SURFACE.splitlines() if not any(each in line for each in lost)]
        checkout.write(f"{DATA}/surface.txt", "\n".join(kept))
        package = read_packages(checkout.root)["accel-data"]
        return require_announced_removals(package, notes, root=checkout.root)

    return compared


def test_members_are_names_of_their_class():
    members = {"Loader.__init__", "Loader.length", "Loader.name"}
    assert names_of(SURFACE) == {"LIMIT", "Loader", "load", "gather", *members}


def test_the_first_release_has_nothing_to_compare_with(removals):
    assert removals("def load", version="0.0.1") == "first release"


def test_a_release_that_keeps_everything_passes(removals):
    assert removals(version="0.1.1") == "nothing removed since 0.1.0"


def test_a_patch_release_removes_nothing(removals):
    with pytest.raises(
        SetupError, match=r"0\.1\.1 is a patch release of 0\.1\.0, but removes Loader\.length"
    ):
        removals("property length", version="0.1.1", notes="- `Loader.length` is gone.")


def test_a_minor_release_names_what_it_removes(removals):
    with pytest.raises(SetupError, match=r"removes Loader\.length, load, which the changelog does not name"):
        removals("property length", "def load", version="0.2.0", notes="- `loading` is faster.")


def test_what_is_named_may_go_and_a_class_takes_its_members_with_it(removals):
    lost = ["class Loader", "    "]
    assert removals(*lost, version="0.2.0", notes="- `Loader` is gone.") == (
        "1 removed since 0.1.0, all in the changelog"
    )
