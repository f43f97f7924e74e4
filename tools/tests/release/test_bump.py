import pytest

from tools.release.bump import bump, bump_all, main, next_version
from tools.setup.failures import SetupError
from tools.workspace import is_admitted

DATE = "2031-02-03"
DATA = "packages/accel-data"


@pytest.fixture
def released(checkout):
    """A checkout in which `accel` depends on accel-data, plainly and by an extra."""
    checkout.replace(
        "packages/accel/pyproject.toml", '"numpy>=1.26"', '"accel-data~=0.1.0", "accel-data[yaml]~=0.1.0"'
    )
    checkout.replace("packages/accel-ops/pyproject.toml", '"numpy>=1.26"', '"accel-database~=0.1.0"')
    return checkout


@pytest.mark.parametrize(
    ("part", "version"), [("major", "2.0.0"), ("minor", "1.3.0"), ("patch", "1.2.4"), ("current", "1.2.3")]
)
def test_next_version_sets_the_smaller_parts_to_zero(part, version):
    assert next_version("1.2.3", part) == version


@pytest.mark.parametrize(
    ("version", "floor", "admitted"),
    [
        ("0.1.3", "0.1.3", True),
        ("0.1.10", "0.1.9", True),
        ("0.1.2", "0.1.3", False),
        ("0.2.0", "0.1.3", False),
        ("1.1.4", "0.1.3", False),
    ],
)
def test_is_admitted_reads_compatible_ranges(version, floor, admitted):
    assert is_admitted(version, floor) is admitted


def test_a_patch_release_rewrites_version_and_changelog_and_leaves_ranges_that_match(released):
    before = released.read("packages/accel/pyproject.toml")
    report = bump(released.root, "accel-data", "patch", date=DATE)
    assert report.splitlines() == ["accel-data: 0.1.0 -> 0.1.1", "tag: accel-data-v0.1.1"]
    assert '__version__ = "0.1.1"' in released.read(f"{DATA}/src/accel_data/__init__.py")
    assert "## 0.1.1 (2031-02-03)\n\n- First version." in released.read(f"{DATA}/CHANGELOG.md")
    assert released.read("packages/accel/pyproject.toml") == before


@pytest.mark.parametrize(("part", "version"), [("minor", "0.2.0"), ("major", "1.0.0")])
def test_a_larger_release_widens_the_ranges_of_dependents_only(released, part, version):
    report = bump(released.root, "accel-data", part, date=DATE)
    text = released.read("packages/accel/pyproject.toml")
    assert f'"accel-data~={version}", "accel-data[yaml]~={version}"' in text
    assert f"accel: now accepts accel-data {version}; it needs a separate release" in report
    assert '"accel-database~=0.1.0"' in released.read("packages/accel-ops/pyproject.toml")


def test_a_release_needs_the_siblings_it_was_tested_with(released):
    for part in ("current", "patch"):
        bump(released.root, "accel-data", part, date=DATE)
        if part == "current":
            text = released.read(f"{DATA}/CHANGELOG.md")
            released.write(f"{DATA}/CHANGELOG.md", f"## Unreleased\n\n- More.\n\n{text}")
    report = bump(released.root, "accel", "current", date=DATE)
    assert "accel: needs accel-data 0.1.1, the newest that is released" in report
    text = released.read("packages/accel/pyproject.toml")
    assert '"accel-data~=0.1.1", "accel-data[yaml]~=0.1.1"' in text


def test_a_sibling_with_unreleased_changes_is_released_first_unless_floors_are_kept(released):
    with pytest.raises(SetupError, match="accel-data: the changelog has an open section.*`--keep-floors`"):
        bump(released.root, "accel", "minor", date=DATE)
    assert '__version__ = "0.1.0"' in released.read("packages/accel/src/accel/__init__.py")
    before = released.read("packages/accel/pyproject.toml")
    bump(released.root, "accel", "minor", date=DATE, keep_floors=True)
    assert released.read("packages/accel/pyproject.toml") == before


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


def test_two_open_sections_are_refused(released):
    released.write(f"{DATA}/CHANGELOG.md", "## Unreleased\n\n- B.\n\n## 0.1.0 (unreleased)\n\n- A.\n")
    with pytest.raises(SetupError, match="more than one open section. Merge them"):
        bump(released.root, "accel-data", "patch", date=DATE)


def test_all_packages_with_an_open_section_are_released_siblings_first(released):
    released.write("packages/accel-ops/CHANGELOG.md", "## 0.1.0 (2030-01-01)\n\n- First.\n")
    released.replace("packages/accel-ops/pyproject.toml", "accel-database~=0.1.0", "numpy>=1.26")
    tags = [report.splitlines()[-1] for report in bump_all(released.root, "minor", date=DATE)]
    assert tags.index("tag: accel-data-v0.2.0") < tags.index("tag: accel-v0.2.0")
    assert len(tags) == 8
    assert '"accel-data~=0.2.0", "accel-data[yaml]~=0.2.0"' in released.read("packages/accel/pyproject.toml")
    assert "## 0.2.0 (2031-02-03)" in released.read("packages/accel/CHANGELOG.md")
    assert '__version__ = "0.1.0"' in released.read("packages/accel-ops/src/accel_ops/__init__.py")
    with pytest.raises(SetupError, match="No changelog has an open section"):
        bump_all(released.root, "minor", date=DATE)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["minor"], "name one package, or give --all"),
        (["accel-data", "minor", "--all"], "name one package, or give --all"),
        (["--all", "minor", "--keep-floors"], "--keep-floors is for one package"),
        (["--all", "minor", "--date", "tomorrow"], "invalid iso_date value: 'tomorrow'"),
    ],
)
def test_a_command_line_that_contradicts_itself_is_refused(words, told, capsys):
    with pytest.raises(SystemExit):
        main(words)
    assert told in capsys.readouterr().err


def test_an_unknown_package_is_refused_with_the_known_ones(released):
    with pytest.raises(SetupError, match="no package `accel-date`. Known: accel, accel-backends"):
        bump(released.root, "accel-date", "patch", date=DATE)
