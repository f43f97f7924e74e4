"""The one object per process."""

import pytest

from accel_state.errors import StateError
from accel_state.partial_state import PartialState
from accel_state.runtime import current_gradient, current_runtime, has_runtime, reset_gradient, reset_runtime

pytestmark = pytest.mark.usefixtures("fresh_state")


def test_nobody_gets_a_runtime_that_was_not_built():
    assert not has_runtime()
    with pytest.raises(StateError, match="has not been built"):
        current_runtime()


def test_first_state_builds_it_and_reset_forgets_it():
    PartialState(cpu=True)
    runtime = current_runtime()
    PartialState()
    assert current_runtime() is runtime
    reset_runtime()
    assert not has_runtime()
    PartialState(cpu=True)
    assert current_runtime() is not runtime


def test_gradient_state_is_there_before_the_runtime_and_taken_over():
    early = current_gradient()
    PartialState(cpu=True)
    assert current_runtime().gradient is early
    reset_gradient()
    assert current_runtime().gradient is current_gradient() is not early


def test_single_process_does_not_wait():
    PartialState(cpu=True)
    current_runtime().wait_for_everyone()
