import pytest

from tools.workspace import dependency_group, owner_of, read_packages, requirement_name, with_siblings


@pytest.mark.parametrize(
    ("requirement", "name"),
    [
        ("PyYAML>=6.0", "pyyaml"),
        ("accel-data[torchdata]~=0.1.0", "accel-data"),
        ("a_b.c ; python_version<'4'", "a-b-c"),
    ],
)
def test_requirement_name_is_normalised(requirement, name):
    assert requirement_name(requirement) == name


def test_with_siblings_puts_the_lowest_first(checkout):
    checkout.replace("packages/accel-ops/pyproject.toml", '"numpy>=1.26"', '"accel-state~=0.1"')
    checkout.replace(
        "packages/accel-data/pyproject.toml", '"numpy>=1.26"', '"accel-ops~=0.1", "accel-state~=0.1"'
    )
    needed = with_siblings(read_packages(checkout.root), "accel-data")
    assert [package.name for package in needed] == ["accel-state", "accel-ops", "accel-data"]


def test_version_is_read_from_the_source(checkout):
    assert read_packages(checkout.root)["accel-ops"].version == "0.1.0"


def test_dependency_groups_may_include_each_other():
    development = dependency_group("dev")
    assert {"pytest", "ruff", "scikit-learn"} <= set(development)


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        ("accel_ops.reading", "accel-ops"),
        ("accel_ops.reading.load", "accel-ops"),
        ("accel_ops.writing.load", None),
        ("accel_ops", None),
        ("numpy.linalg", None),
    ],
)
def test_owner_of_knows_modules_and_names_in_them(checkout, text, owner):
    found = owner_of(read_packages(checkout.root), text)
    assert (found.name if found else None) == owner
