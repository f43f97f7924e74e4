from __future__ import annotations

import pytest

from accel_state.availability.package import Package, why_package_not


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a made-up distribution with a module of its own."""
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
    assert why_package_not(package) == "`made-up` is not installed. Run `pip install made-up`."


def test_the_install_hint_is_the_extra_where_there_is_one():
    package = Package("made_up", ("made-up",), install="made-up more")
    assert why_package_not(package).endswith("Run `pip install made-up more`.")


def test_the_install_hint_asks_for_a_version_that_will_do():
    assert why_package_not(Package("made_up", ("made-up",), "1.5")).endswith(
        "Run `pip install 'made-up>=1.5'`."
    )


def test_what_is_installed_is_available_and_not_imported(install):
    install("made-up", "2.0", module="made_up")
    assert why_package_not(Package("made_up", ("made-up",))) is None
    assert why_package_not(Package("made_up", ("made-up",), "2.0")) is None


def test_what_is_too_old_says_what_was_found_and_what_is_needed(install):
    install("made-up", "1.9", module="made_up")
    assert why_package_not(Package("made_up", ("made-up",), "1.10")) == (
        "`made-up` is too old: found 1.9, need 1.10 or newer. Run `pip install -U 'made-up>=1.10'`."
    )


def test_a_minimum_of_the_caller_replaces_the_packages_own(install):
    install("made-up", "1.9", module="made_up")
    package = Package("made_up", ("made-up",), "3.0")
    assert why_package_not(package, minimum="1.0") is None
    assert "need 1.95" in why_package_not(package, minimum="1.95")


def test_any_of_several_distributions_will_do(install):
    install("made-up-fork", "1.0", module="made_up")
    assert why_package_not(Package("made_up", ("made-up", "made-up-fork"))) is None


def test_a_distribution_whose_module_is_gone_is_not_available(install):
    install("made-up", "1.0")
    assert why_package_not(Package("made_up", ("made-up",))) == (
        "`made-up` 1.0 is installed, but its module `made_up` cannot be found."
    )


def test_a_folder_of_the_same_name_is_not_the_package(tmp_path, monkeypatch):
    (tmp_path / "made_up").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "not installed" in why_package_not(Package("made_up", ("made-up",)))
