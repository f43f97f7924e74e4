from __future__ import annotations

import platform

import pytest

from accel_state.availability import deepspeed_required, torchao_required, why_not
from accel_state.availability.checks import are_libraries_initialized, check_os_kernel
from accel_state.errors import NotAvailableError, UnknownNameError


@pytest.mark.parametrize(
    ("decorator", "name"), [(deepspeed_required, "deepspeed"), (torchao_required, "torchao")]
)
@pytest.mark.usefixtures("nothing_installed")
def test_a_call_is_refused_where_the_package_is_missing(decorator, name):
    @decorator
    def train() -> str:
        raise AssertionError("called")

    with pytest.raises(
        NotAvailableError, match=rf"train` needs `{name}`. `{name}` is not installed. Run `pip install"
    ):
        train()
    assert train.__name__ == "train"


def test_a_call_goes_through_where_the_package_is_there(tmp_path, monkeypatch):
    info = tmp_path / "torchao-99.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torchao\nVersion: 99.0\n")
    (tmp_path / "torchao.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert torchao_required(lambda value, *, more: (value, more))(1, more=2) == (1, 2)


def test_what_is_available_has_no_reason_against_it():
    assert why_not("pytest") is None
    assert why_not("is_pytest_available") is None


def test_packages_and_devices_are_explained_alike():
    reason = why_not("sdaa")
    assert reason is None or reason.startswith("No Tecorigin SDAA")
    reason = why_not("lomo")
    assert reason is None or reason.startswith("`lomo-optim` is not installed")


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(
        UnknownNameError, match="Unknown availability check `deepsped`.*Did you mean `deepspeed`"
    ):
        why_not("deepsped")


def test_imported_modules_are_returned_in_the_order_asked_for():
    assert are_libraries_initialized("pytest", "no_such_module", "sys") == ["pytest", "sys"]


def set_kernel(monkeypatch, system, release):
    uname = platform.uname()._replace(system=system, release=release)
    monkeypatch.setattr(platform, "uname", lambda: uname)


@pytest.mark.parametrize("release", ["5.4.0-150-generic", "4.18.0-553.el8", "3.10"])
def test_an_old_kernel_is_logged(monkeypatch, caplog, release):
    set_kernel(monkeypatch, "Linux", release)
    check_os_kernel()
    assert f"The Linux kernel {release} is older than 5.5.0" in caplog.text


@pytest.mark.parametrize(("system", "release"), [("Linux", "5.5.0"), ("Linux", "6.1"), ("Darwin", "4.0.0")])
def test_other_kernels_are_not(monkeypatch, caplog, system, release):
    set_kernel(monkeypatch, system, release)
    check_os_kernel()
    assert not caplog.records
