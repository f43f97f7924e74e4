"""The loaders that are being read, and what the innermost tells."""

import gc
import weakref

import pytest

from accel_state.gradient_data import GradientData


class Loader:
    def __init__(self, *, end_of_dataloader=False, remainder=-1):
        self.end_of_dataloader = end_of_dataloader
        self.remainder = remainder


def test_outside_of_loops_nothing_is_known():
    data = GradientData()
    assert (data.active_dataloader, data.in_dataloader, data.dataloader_references) == (None, False, [])
    assert (data.end_of_dataloader, data.remainder, data.sync_gradients) == (False, -1, True)


def test_innermost_loader_speaks_until_it_is_left():
    data = GradientData()
    outer, inner = Loader(remainder=3), Loader(end_of_dataloader=True, remainder=5)
    data._add_dataloader(outer)
    data._add_dataloader(inner)
    assert (data.active_dataloader, data.dataloader_references) == (inner, [outer, inner])
    assert (data.end_of_dataloader, data.remainder) == (True, 5)
    data._remove_dataloader(inner)
    assert (data.end_of_dataloader, data.remainder, data.in_dataloader) == (False, 3, True)
    data._remove_dataloader(outer)
    data._remove_dataloader(outer)
    assert data.active_dataloader is None


def test_loader_read_anew_is_there_once_and_on_top():
    data = GradientData()
    train, evaluate = Loader(), Loader()
    data._add_dataloader(train)
    data._add_dataloader(evaluate)
    data._add_dataloader(train)
    assert data.dataloader_references == [evaluate, train]


def test_abandoned_loader_is_neither_kept_nor_active():
    data = GradientData()
    outer, abandoned = Loader(), Loader()
    data._add_dataloader(outer)
    data._add_dataloader(abandoned)
    gone = weakref.ref(abandoned)
    del abandoned
    gc.collect()
    assert gone() is None
    assert data.active_dataloader is outer
    assert len(data._loaders) == 1


def test_state_has_no_room_for_more():
    with pytest.raises(AttributeError):
        GradientData().another = 1


def test_settings_have_the_plugins_defaults_and_follow_changes():
    data = GradientData()
    assert (data.num_steps, data.adjust_scheduler, data.sync_with_dataloader, data.sync_each_batch) == (
        1,
        True,
        True,
        False,
    )
    data.plugin_kwargs.update(
        num_steps=4, adjust_scheduler=False, sync_with_dataloader=False, sync_each_batch=True
    )
    assert (data.num_steps, data.adjust_scheduler, data.sync_with_dataloader, data.sync_each_batch) == (
        4,
        False,
        False,
        True,
    )


def test_new_window_means_gradients_of_xla_are_not_synced_yet():
    data = GradientData()
    data.is_xla_gradients_synced = True
    data._set_sync_gradients(False)
    assert (data.sync_gradients, data.is_xla_gradients_synced) == (False, True)
    data._set_sync_gradients(True)
    assert (data.sync_gradients, data.is_xla_gradients_synced) == (True, False)
