from __future__ import annotations

import importlib.metadata
import sys

import pytest
from packaging.version import Version

from accel_state.errors import ConfigError, NotAvailableError, StateError
from accel_state.versions import (
    STR_OPERATION_TO_FUNC,
    Package,
    compare_versions,
    installed_version,
    is_torch_version,
    require_no_accelerate,
)


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


def test_a_name_means_the_installed_version():
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


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a made-up distribution with its own module."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(distribution: str, version: str, *, module: str | None = None) -> None:
        info = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        if module is not None:
            (tmp_path / f"{module}.py").write_text("raise AssertionError('imported')\n")

    return put


def test_what_is_not_installed_is_named_with_the_install_hint():
    package = Package("made_up", ("made-up",))
    assert package.unavailable_reason() == "`made-up` is not installed. Run `pip install made-up`."


def test_the_install_hint_is_the_extra_where_there_is_one():
    package = Package("made_up", ("made-up",), install="made-up more")
    assert package.unavailable_reason().endswith("Run `pip install made-up more`.")


def test_the_install_hint_requests_a_version_that_will_do():
    assert (
        Package("made_up", ("made-up",), "1.5")
        .unavailable_reason()
        .endswith("Run `pip install 'made-up>=1.5'`.")
    )


def test_what_is_installed_is_available_and_not_imported(install):
    install("made-up", "2.0", module="made_up")
    assert Package("made_up", ("made-up",)).unavailable_reason() is None
    assert Package("made_up", ("made-up",), "2.0").unavailable_reason() is None


def test_what_is_too_old_names_what_was_found_and_what_is_needed(install):
    install("made-up", "1.9", module="made_up")
    assert Package("made_up", ("made-up",), "1.10").unavailable_reason() == (
        "`made-up` is too old: found 1.9, need 1.10 or newer. Run `pip install -U 'made-up>=1.10'`."
    )


def test_another_minimum_replaces_the_packages(install):
    install("made-up", "1.9", module="made_up")
    package = Package("made_up", ("made-up",), "3.0")
    assert package._replace(minimum="1.0").unavailable_reason() is None
    assert "need 1.95" in package._replace(minimum="1.95").unavailable_reason()


def test_any_of_several_distributions_will_do(install):
    install("made-up-fork", "1.0", module="made_up")
    assert Package("made_up", ("made-up", "made-up-fork")).unavailable_reason() is None


def test_a_distribution_whose_module_is_gone_is_not_available(install):
    install("made-up", "1.0")
    assert Package("made_up", ("made-up",)).unavailable_reason() == (
        "`made-up` 1.0 is installed, but its module `made_up` cannot be found."
    )


def test_a_folder_of_the_same_name_is_not_the_package(tmp_path, monkeypatch):
    (tmp_path / "made_up").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "not installed" in Package("made_up", ("made-up",)).unavailable_reason()


def test_only_a_package_with_code_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    require_no_accelerate()
    (tmp_path / "accelerate").mkdir()
    require_no_accelerate()  # a folder that happens to be called so
    (tmp_path / "accelerate" / "__init__.py").touch()
    sys.path_importer_cache.pop(str(tmp_path), None)
    with pytest.raises(StateError, match=r"accelerate.__init__\.py(?s:.)*pip uninstall accelerate"):
        require_no_accelerate()
