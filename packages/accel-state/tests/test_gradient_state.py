"""`GradientState`: a view of the one object that the training step reads."""

import pytest

from accel_state.accumulation import GradientAccumulationPlugin
from accel_state.gradient_state import GradientState
from accel_state.partial_state import PartialState
from accel_state.runtime import current_gradient, current_runtime

pytestmark = pytest.mark.usefixtures("fresh_state")


class Loader:
    end_of_dataloader = True
    remainder = 7


def test_all_instances_and_the_runtime_show_one_object():
    early = GradientState(GradientAccumulationPlugin(num_steps=3))
    PartialState(cpu=True)
    assert current_runtime().gradient is current_gradient()
    current_runtime().gradient.sync_gradients = False
    assert not early.sync_gradients
    assert GradientState().num_steps == 3


def test_plugin_replaces_the_settings_and_none_leaves_them():
    state = GradientState(GradientAccumulationPlugin(num_steps=3, adjust_scheduler=False))
    GradientState()
    assert (state.num_steps, state.adjust_scheduler, state.sync_with_dataloader) == (3, False, True)
    state.plugin_kwargs["num_steps"] = 5
    assert (GradientState().num_steps, state.sync_each_batch) == (5, False)
    GradientState(GradientAccumulationPlugin(sync_with_dataloader=False))
    assert (state.num_steps, state.sync_with_dataloader) == (1, False)


def test_loaders_are_those_of_the_object():
    state, loader = GradientState(), Loader()
    state._add_dataloader(loader)
    assert (state.active_dataloader, state.dataloader_references, state.in_dataloader) == (
        loader,
        [loader],
        True,
    )
    assert (state.end_of_dataloader, state.remainder) == (True, 7)
    assert "At end of current dataloader: True\nExtra samples added: 7\n" in repr(state)
    state._remove_dataloader(loader)
    assert not state.in_dataloader


def test_written_values_reach_the_object():
    state = GradientState()
    state._set_sync_gradients(False)
    state.is_xla_gradients_synced = True
    assert (current_gradient().sync_gradients, GradientState().is_xla_gradients_synced) == (False, True)
    state.sync_gradients = True
    state.plugin_kwargs = {"num_steps": 2}
    assert current_gradient().sync_gradients
    assert current_gradient().num_steps == 2


def test_reset_forgets_everything_also_in_the_runtime():
    PartialState(cpu=True)
    assert not GradientState.is_initialized()
    assert GradientState._shared_state == {}
    state = GradientState(GradientAccumulationPlugin(num_steps=3))
    assert state.initialized
    assert GradientState._shared_state["plugin_kwargs"]["num_steps"] == 3
    GradientState._reset_state()
    assert not state.initialized
    assert state.num_steps == 1
    assert current_runtime().gradient is current_gradient()
