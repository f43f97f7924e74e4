from __future__ import annotations

import platform
import warnings

import pytest

from accel_state.availability.system import are_libraries_initialized, check_os_kernel


def test_imported_modules_are_returned_in_the_order_asked_for():
    assert are_libraries_initialized("pytest", "no_such_module", "sys") == ["pytest", "sys"]


@pytest.mark.parametrize("release", ["5.4.0-150-generic", "4.18.0-553.el8", "3.10"])
def test_an_old_kernel_is_warned_of(monkeypatch, release):
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "release", lambda: release)
    with pytest.warns(UserWarning, match=f"The Linux kernel {release} is older than 5.5.0"):
        check_os_kernel()


@pytest.mark.parametrize(("system", "release"), [("Linux", "5.5.0"), ("Linux", "6.1"), ("Darwin", "4.0.0")])
def test_other_kernels_are_not(monkeypatch, system, release):
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "release", lambda: release)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_os_kernel()
