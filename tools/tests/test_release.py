import pytest

from tools.release import bump, bump_all
from tools.running import SetupError

DATE = "2031-02-03"
DATA = "packages/accel-data"


@pytest.fixture
def changed(checkout):
    """A checkout with changes of accel-data, on which `accel` depends, plainly and by an extra."""
    checkout.write(f"{DATA}/CHANGELOG.md", "## Unreleased\n\n- More.\n\n## 0.1.0 (2030-01-01)\n\n- First.\n")
    checkout.replace(
        "packages/accel/pyproject.toml", '"numpy>=1.26"', '"accel-data~=0.1.0", "accel-data[yaml]~=0.1.0"'
    )
    return checkout


@pytest.mark.parametrize(("part", "version"), [("patch", "0.1.1"), ("minor", "0.2.0")])
def test_a_release_writes_version_changelog_and_the_ranges_of_dependents(changed, part, version):
    assert bump_all(changed.root, part, date=DATE) == [f"accel-data-v{version}"]
    assert f'__version__ = "{version}"' in changed.read(f"{DATA}/src/accel_data/__init__.py")
    assert f"## {version} (2031-02-03)\n\n- More." in changed.read(f"{DATA}/CHANGELOG.md")
    text = changed.read("packages/accel/pyproject.toml")
    assert f'"accel-data~={version}", "accel-data[yaml]~={version}"' in text


def test_siblings_are_released_first_and_nothing_without_changes(changed):
    changed.write("packages/accel/CHANGELOG.md", "## Unreleased\n\n- More.\n")
    with pytest.raises(SetupError, match="`accel` may need changes of accel-data that were not released"):
        bump(changed.root, "accel", "patch", date=DATE)
    assert bump_all(changed.root, "patch", date=DATE) == ["accel-data-v0.1.1", "accel-v0.1.1"]
    assert '"accel-data~=0.1.1", "accel-data[yaml]~=0.1.1"' in changed.read("packages/accel/pyproject.toml")
    with pytest.raises(SetupError, match="no changes under `## Unreleased`"):
        bump(changed.root, "accel-data", "patch", date=DATE)
