from __future__ import annotations

import pytest

from accel_state.availability import why_not
from accel_state.errors import UnknownNameError


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
