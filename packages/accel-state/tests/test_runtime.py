"""The one object per process."""

import pytest

from accel_state.errors import StateError
from accel_state.mesh_layout import MeshLayout
from accel_state.partial_state import PartialState
from accel_state.runtime import current_runtime, has_runtime, reset_runtime

pytestmark = pytest.mark.usefixtures("fresh_state")


def test_a_runtime_that_was_not_built_is_an_error():
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


def test_an_attribute_of_a_state_that_was_reset_is_missing():
    state = PartialState(cpu=True)
    reset_runtime()
    assert not hasattr(state, "device")
    with pytest.raises(AttributeError, match=r"Construct `Accelerator\(\)` or `PartialState\(\)` first"):
        _ = state.num_processes


def test_every_process_is_a_replica_until_a_layout_is_set():
    PartialState(cpu=True)
    assert current_runtime().layout == MeshLayout()


def test_a_layout_is_that_of_the_ranks_while_their_number_fits():
    state = PartialState(cpu=True)
    runtime = current_runtime()
    state.num_processes = 4
    assert runtime.layout == MeshLayout(dp_replicate=4)
    runtime.arrange(MeshLayout(dp_shard=4))
    state.num_processes = 2
    assert runtime.layout == MeshLayout(dp_replicate=2)
    state.num_processes = 4
    assert runtime.layout == MeshLayout(dp_shard=4)
    runtime.arrange(None)
    assert runtime.layout == MeshLayout(dp_replicate=4)


def test_single_process_does_not_wait():
    PartialState(cpu=True)
    current_runtime().wait_for_everyone()


def test_ranks_whose_group_was_destroyed_do_not_wait_for_each_other():
    state = PartialState(cpu=True)
    state.num_processes = 2
    with pytest.raises(StateError, match="of the 2 processes was destroyed, as by `end_training`. Construct"):
        current_runtime().ensure_group()
