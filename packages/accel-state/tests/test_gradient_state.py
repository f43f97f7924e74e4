"""`GradientState`: one object in each process, and the loaders that are being read."""

import gc
import pickle
import weakref

import pytest

from accel_state.errors import ConfigError
from accel_state.gradient_state import (
    GradientAccumulationPlugin,
    GradientState,
    SharedState,
    current_gradient,
)
from accel_state.partial_state import PartialState
from accel_state.runtime import reset_runtime

pytestmark = pytest.mark.usefixtures("fresh_state")


class Loader:
    def __init__(self, *, end_of_dataloader=False, remainder=-1):
        self.end_of_dataloader = end_of_dataloader
        self.remainder = remainder


def test_there_is_one_in_a_process():
    early = GradientState(GradientAccumulationPlugin(num_steps=3))
    PartialState(cpu=True)
    assert early is GradientState() is current_gradient() is pickle.loads(pickle.dumps(early))
    assert GradientState().num_steps == 3


def test_who_has_it_sees_a_reset():
    """Optimizers and schedulers keep it; loaders request it again."""
    kept = current_gradient()
    GradientState(GradientAccumulationPlugin(num_steps=3)).sync_gradients = False
    for reset in (GradientState._reset_state, reset_runtime):
        reset()
        assert kept is GradientState()
        assert (kept.num_steps, kept.sync_gradients) == (1, True)
        kept.sync_gradients = False


def test_plugin_replaces_the_settings_and_none_leaves_them():
    state = GradientState(GradientAccumulationPlugin(num_steps=3, adjust_scheduler=False))
    GradientState()
    assert (state.num_steps, state.adjust_scheduler, state.sync_with_dataloader) == (3, False, True)
    state.plugin_kwargs["num_steps"] = 5
    assert (GradientState().num_steps, state.sync_each_batch) == (5, False)
    GradientState(GradientAccumulationPlugin(sync_with_dataloader=False))
    assert (state.num_steps, state.sync_with_dataloader) == (1, False)


def test_settings_that_were_not_given_are_not_listed():
    assert GradientState(GradientAccumulationPlugin(num_steps=1)).plugin_kwargs == {"num_steps": 1}
    plugin = GradientAccumulationPlugin(num_steps=2, sync_with_dataloader=False)
    assert GradientState(plugin).plugin_kwargs == {"num_steps": 2, "sync_with_dataloader": False}


def test_it_is_shown_with_its_loader():
    state, loader = GradientState(), Loader(end_of_dataloader=True, remainder=7)
    state._add_dataloader(loader)
    assert "At end of current dataloader: True\nExtra samples added: 7\n" in repr(state)


def test_reset_forgets_everything():
    assert not GradientState.is_initialized()
    assert GradientState._shared_state == {}
    state = GradientState(GradientAccumulationPlugin(num_steps=3))
    assert state.initialized
    assert GradientState._shared_state["plugin_kwargs"]["num_steps"] == 3
    GradientState._reset_state()
    assert not state.initialized
    assert state.num_steps == 1


def test_outside_of_loops_nothing_is_known():
    state = GradientState()
    assert (state.active_dataloader, state.in_dataloader, state.dataloader_references) == (None, False, [])
    assert (state.end_of_dataloader, state.remainder, state.sync_gradients) == (False, -1, True)


def test_innermost_loader_speaks_until_it_is_left():
    state = GradientState()
    outer, inner = Loader(remainder=3), Loader(end_of_dataloader=True, remainder=5)
    state._add_dataloader(outer)
    state._add_dataloader(inner)
    assert (state.active_dataloader, state.dataloader_references) == (inner, [outer, inner])
    assert (state.end_of_dataloader, state.remainder) == (True, 5)
    state._remove_dataloader(inner)
    assert (state.end_of_dataloader, state.remainder, state.in_dataloader) == (False, 3, True)
    state._remove_dataloader(outer)
    state._remove_dataloader(outer)
    assert state.active_dataloader is None


def test_loader_read_again_is_there_once_and_on_top():
    state = GradientState()
    train, evaluate = Loader(), Loader()
    state._add_dataloader(train)
    state._add_dataloader(evaluate)
    state._add_dataloader(train)
    assert state.dataloader_references == [evaluate, train]


def test_abandoned_loader_is_neither_kept_nor_active():
    state = GradientState()
    outer, abandoned = Loader(), Loader()
    state._add_dataloader(outer)
    state._add_dataloader(abandoned)
    gone = weakref.ref(abandoned)
    del abandoned
    gc.collect()
    assert gone() is None
    assert state.active_dataloader is outer
    assert len(state._loaders) == 1


def test_state_has_no_room_for_more():
    with pytest.raises(AttributeError):
        GradientState().another = 1


def test_settings_have_the_plugins_defaults_and_follow_changes():
    state = GradientState()
    assert (state.num_steps, state.adjust_scheduler, state.sync_with_dataloader, state.sync_each_batch) == (
        1,
        True,
        True,
        False,
    )
    state.plugin_kwargs.update(
        num_steps=4, adjust_scheduler=False, sync_with_dataloader=False, sync_each_batch=True
    )
    assert (state.num_steps, state.adjust_scheduler, state.sync_with_dataloader, state.sync_each_batch) == (
        4,
        False,
        False,
        True,
    )


def test_new_window_means_gradients_of_xla_are_not_synced_yet():
    state = GradientState()
    state.is_xla_gradients_synced = True
    state._set_sync_gradients(False)
    assert (state.sync_gradients, state.is_xla_gradients_synced) == (False, True)
    state._set_sync_gradients(True)
    assert (state.sync_gradients, state.is_xla_gradients_synced) == (True, False)


def test_the_loaders_being_read_can_be_set():
    state, loader = GradientState(), Loader(remainder=3)
    state.dataloader_references = [None, loader]
    assert (state.dataloader_references, state.remainder) == ([loader], 3)
    state.dataloader_references = []
    assert not state.in_dataloader


def test_defaults_and_differences():
    assert GradientAccumulationPlugin().to_dict() == {
        "num_steps": None,
        "adjust_scheduler": True,
        "sync_with_dataloader": True,
        "sync_each_batch": False,
    }
    assert GradientAccumulationPlugin(2, sync_each_batch=True).to_kwargs() == {
        "num_steps": 2,
        "sync_each_batch": True,
    }


def test_less_than_one_step_is_refused():
    with pytest.raises(ConfigError, match="`num_steps` must be at least 1, got 0"):
        GradientAccumulationPlugin(num_steps=0)


def test_dict_is_collected_again_at_every_look():
    values = {}

    class Sample:
        _shared_state = SharedState(lambda: dict(values))

    assert Sample._shared_state == {}
    values["a"] = 1
    assert Sample._shared_state == Sample()._shared_state == {"a": 1}
    Sample._shared_state["b"] = 2
    assert Sample._shared_state == {"a": 1}
