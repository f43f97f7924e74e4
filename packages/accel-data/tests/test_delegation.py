from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from accel_data.delegation import DatasetProxy


class Stream:
    part = 0


class Named(DatasetProxy):
    def __init__(self, dataset: Any) -> None:
        self.part = "own"
        super().__init__(dataset)


def test_attributes_of_the_data_set_are_read_and_set_through_it() -> None:
    stream = Stream()
    stand_in = DatasetProxy(stream)
    stand_in.part = 3
    assert (stand_in.part, stream.part) == (3, 3)
    assert "part" not in stand_in.__dict__
    stand_in.unknown = 1
    assert not hasattr(stream, "unknown")


def test_what_a_subclass_has_assigned_before_is_its_own() -> None:
    stream = Stream()
    named = Named(stream)
    named.part = "changed"
    assert (named.part, stream.part) == ("changed", 0)


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_stand_for_the_data_set_too(twin: Any) -> None:
    assert twin(DatasetProxy(Stream())).part == 0


def test_what_neither_has_is_missing() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        DatasetProxy(Stream()).nothing
