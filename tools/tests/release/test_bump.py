import pytest

from tools.release.bump import bump, bump_all
from tools.setup.running import SetupError
from tools.workspace import is_admitted

DATE = "2031-02-03"
DATA = "packages/accel-data"


@pytest.fixture
def released(checkout):
    """A checkout in which `accel` depends on accel-data, plainly and by an extra."""
    for path in checkout.root.glob("packages/*/CHANGELOG.md"):
        path.write_text("## 0.1.0 (2030-01-01)\n\n- First.\n")
    checkout.write(f"{DATA}/CHANGELOG.md", "## Unreleased\n\n- More.\n\n## 0.1.0 (2030-01-01)\n\n- First.\n")
    checkout.replace(
        "packages/accel/pyproject.toml", '"numpy>=1.26"', '"accel-data~=0.1.0", "accel-data[yaml]~=0.1.0"'
    )
    return checkout


@pytest.mark.parametrize(
    ("version", "floor", "admitted"),
    [
        ("0.1.3", "0.1.3", True),
        ("0.1.10", "0.1.9", True),
        ("0.1.2", "0.1.3", False),
        ("0.2.0", "0.1.3", False),
    ],
)
def test_is_admitted_reads_compatible_ranges(version, floor, admitted):
    assert is_admitted(version, floor) is admitted


@pytest.mark.parametrize(
    ("part", "version", "floor"), [("patch", "0.1.1", "0.1.0"), ("minor", "0.2.0", "0.2.0")]
)
def test_a_release_writes_version_and_changelog_and_widens_ranges_that_would_not_match(
    released, part, version, floor
):
    assert bump_all(released.root, part, date=DATE) == [f"accel-data-v{version}"]
    assert f'__version__ = "{version}"' in released.read(f"{DATA}/src/accel_data/__init__.py")
    assert f"## {version} (2031-02-03)\n\n- More." in released.read(f"{DATA}/CHANGELOG.md")
    text = released.read("packages/accel/pyproject.toml")
    assert f'"accel-data~={floor}", "accel-data[yaml]~={floor}"' in text


def test_a_release_needs_the_siblings_it_was_tested_with_which_are_released_first(released):
    released.write("packages/accel/CHANGELOG.md", "## Unreleased\n\n- More.\n")
    with pytest.raises(SetupError, match="`accel` may need changes of accel-data that were not released"):
        bump(released.root, "accel", "patch", date=DATE)
    assert bump_all(released.root, "patch", date=DATE) == ["accel-data-v0.1.1", "accel-v0.1.1"]
    assert '"accel-data~=0.1.1", "accel-data[yaml]~=0.1.1"' in released.read("packages/accel/pyproject.toml")


@pytest.mark.parametrize("changelog", ["## 0.1.0 (2030-01-01)\n", "## Unreleased\n\n## 0.1.0 (2030-01-01)\n"])
def test_nothing_is_written_when_the_changelog_names_no_changes(released, changelog):
    released.write(f"{DATA}/CHANGELOG.md", changelog)
    with pytest.raises(SetupError, match="no changes under `## Unreleased`"):
        bump(released.root, "accel-data", "patch", date=DATE)
    assert '__version__ = "0.1.0"' in released.read(f"{DATA}/src/accel_data/__init__.py")
