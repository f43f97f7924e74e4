import pytest

from tools.release.bump import bump, is_admitted, next_version
from tools.setup.failures import SetupError

DATE = "2031-02-03"
DATA = "packages/accel-data"


@pytest.fixture
def released(checkout):
    """A checkout in which `accel` depends on accel-data, plainly and by an extra."""
    checkout.replace(
        "packages/accel/pyproject.toml", '"numpy>=1.26"', '"accel-data~=0.1", "accel-data[yaml]~=0.1"'
    )
    checkout.replace("packages/accel-ops/pyproject.toml", '"numpy>=1.26"', '"accel-database~=0.1"')
    return checkout


@pytest.mark.parametrize(
    ("part", "version"), [("major", "2.0.0"), ("minor", "1.3.0"), ("patch", "1.2.4"), ("current", "1.2.3")]
)
def test_next_version_sets_the_smaller_parts_to_zero(part, version):
    assert next_version("1.2.3", part) == version


@pytest.mark.parametrize(
    ("version", "floor", "admitted"),
    [("0.2.0", "0.1", True), ("1.0.0", "0.1", False), ("0.1.9", "0.2", False), ("0.2.0", "0.1.3", False)],
)
def test_is_admitted_reads_compatible_ranges(version, floor, admitted):
    assert is_admitted(version, floor) is admitted


def test_a_minor_release_rewrites_version_and_changelog_and_leaves_ranges_that_match(released):
    before = released.read("packages/accel/pyproject.toml")
    report = bump(released.root, "accel-data", "minor", date=DATE)
    assert report.splitlines() == ["accel-data: 0.1.0 -> 0.2.0", "tag: accel-data-v0.2.0"]
    assert '__version__ = "0.2.0"' in released.read(f"{DATA}/src/accel_data/__init__.py")
    assert "## 0.2.0 (2031-02-03)\n\n- First version." in released.read(f"{DATA}/CHANGELOG.md")
    assert released.read("packages/accel/pyproject.toml") == before


def test_a_major_release_widens_the_ranges_of_dependents_only(released):
    report = bump(released.root, "accel-data", "major", date=DATE)
    text = released.read("packages/accel/pyproject.toml")
    assert '"accel-data~=1.0", "accel-data[yaml]~=1.0"' in text
    assert "accel: now accepts accel-data 1.0.0; it needs a release of its own" in report
    assert '"accel-database~=0.1"' in released.read("packages/accel-ops/pyproject.toml")


def test_current_releases_the_version_as_it_stands(released):
    assert bump(released.root, "accel-data", "current", date=DATE).endswith("tag: accel-data-v0.1.0")
    assert "## 0.1.0 (2031-02-03)" in released.read(f"{DATA}/CHANGELOG.md")


def test_nothing_is_written_when_the_changelog_says_nothing(released):
    released.write(
        f"{DATA}/CHANGELOG.md", "# Changelog\n\n## Unreleased\n\n## 0.1.0 (2030-01-01)\n\n- First.\n"
    )
    with pytest.raises(SetupError, match="`## Unreleased` is empty"):
        bump(released.root, "accel-data", "patch", date=DATE)
    assert '__version__ = "0.1.0"' in released.read(f"{DATA}/src/accel_data/__init__.py")


def test_a_changelog_without_an_open_section_is_refused(released):
    released.write(f"{DATA}/CHANGELOG.md", "# Changelog\n\n## 0.1.0 (2030-01-01)\n\n- First.\n")
    with pytest.raises(SetupError, match="no section `## Unreleased`"):
        bump(released.root, "accel-data", "patch", date=DATE)


def test_an_unknown_package_is_refused_with_the_known_ones(released):
    with pytest.raises(SetupError, match="no package `accel-date`. Known: accel, accel-backends"):
        bump(released.root, "accel-date", "patch", date=DATE)
