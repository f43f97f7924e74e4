from __future__ import annotations

import pytest

from accel_backends.handlers import (
    AutocastKwargs,
    DistributedDataParallelKwargs,
    GradScalerKwargs,
    ProfileKwargs,
    collect,
)
from accel_state.errors import ConfigError
from accel_state.kwargs_handler import InitProcessGroupKwargs, KwargsHandler


class Unread(KwargsHandler):
    pass


class MyScaler(GradScalerKwargs):
    pass


def test_handlers_are_found_by_class():
    handlers = [
        AutocastKwargs(),
        DistributedDataParallelKwargs(),
        GradScalerKwargs(),
        InitProcessGroupKwargs(),
        ProfileKwargs(),
    ]
    assert list(collect(handlers).values()) == handlers
    assert set(collect(handlers)) == {type(handler) for handler in handlers}


def test_none_means_none():
    assert dict(collect(None)) == {}


def test_a_subclass_counts_as_the_class_it_customises():
    mine = MyScaler(init_scale=2.0)
    assert collect([mine])[GradScalerKwargs] is mine


def test_an_unknown_handler_is_refused_by_name():
    with pytest.raises(
        ConfigError, match="`Unread`, which is not supported. Known: AORecipeKwargs, AutocastKwargs, Distr"
    ):
        collect([Unread()])


def test_what_is_no_handler_is_refused():
    with pytest.raises(ConfigError, match="`dict`, which is not supported"):
        collect([{"init_scale": 2.0}])


def test_a_class_in_place_of_an_object_is_refused():
    with pytest.raises(ConfigError, match=r"got the class `AutocastKwargs`. Pass an object"):
        collect([AutocastKwargs])


def test_two_of_a_kind_are_refused():
    with pytest.raises(ConfigError, match="two of `GradScalerKwargs`"):
        collect([GradScalerKwargs(), MyScaler()])
