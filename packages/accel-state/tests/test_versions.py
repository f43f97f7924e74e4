from __future__ import annotations

import importlib.metadata

import pytest
from packaging.version import Version

from accel_state.errors import ConfigError, NotAvailableError
from accel_state.versions import STR_OPERATION_TO_FUNC, compare_versions, installed_version, is_torch_version


@pytest.mark.parametrize(
    ("version", "operation", "other", "expected"),
    [
        ("1.9", "<", "1.10", True),
        ("1.10", "<=", "1.10", True),
        ("1.10", "==", "1.10.0", True),
        ("1.10", "!=", "1.10.0", False),
        ("2.0", ">=", "2.0.dev1", True),
        ("2.0", ">", "2.0", False),
    ],
)
def test_versions_are_compared_as_versions_not_as_text(version, operation, other, expected):
    assert compare_versions(Version(version), operation, other) is expected


def test_a_name_stands_for_the_installed_version():
    found = importlib.metadata.version("packaging")
    assert compare_versions("packaging", "==", found)
    assert not compare_versions("packaging", "<", found)


def test_torch_is_compared_without_its_build_suffix_getting_in_the_way():
    assert is_torch_version(">=", "2.9")
    assert is_torch_version("<", "99.0")


def test_every_operation_is_in_the_table():
    assert sorted(STR_OPERATION_TO_FUNC) == ["!=", "<", "<=", "==", ">", ">="]


def test_an_unknown_operation_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="`operation` is `=>`, but it must be one of: > >= == != <= <"):
        compare_versions("torch", "=>", "1.0")


def test_text_that_is_no_version_is_refused():
    with pytest.raises(ConfigError, match="`requirement_version` is `new`, which is no version"):
        compare_versions("torch", ">", "new")


def test_a_package_that_is_not_installed_is_named():
    with pytest.raises(NotAvailableError, match="`no-such-package` is not installed. Run `pip install"):
        installed_version("no-such-package")
