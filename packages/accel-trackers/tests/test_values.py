from __future__ import annotations

import json
import threading
from collections import Counter

import pytest
import torch

from accel_trackers.values import as_number, as_plain_data, flat, frozen, thawed, with_numbers


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1), (0.5, 0.5), (True, True), (torch.tensor(2.5), 2.5), (torch.tensor([3]), 3),
        (torch.ones(1, 1, requires_grad=True), 1.0),
        (torch.ones(2), None), ("1", None), (None, None), ([1], None), (torch.tensor(1j), None),
    ],
)  # fmt: skip
def test_as_number_finds_numbers_and_nothing_else(value, number):
    found = as_number(value)
    assert found == number
    assert isinstance(found, int | float | None)


def test_as_plain_data_is_json_whatever_comes():
    value = {
        "nested": {"tensor": torch.tensor([[1, 2]]), 3: (1.5, None)},
        "nan": float("nan"), "inf": [float("inf"), -torch.tensor(float("inf"))],
        "huge": 10**400, "flag": True, "object": threading.Event, "set": {1},
    }  # fmt: skip
    plain = as_plain_data(value)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain == {
        "nested": {"tensor": [[1, 2]], "3": [1.5, None]}, "nan": "NaN", "inf": ["Infinity", "-Infinity"],
        "huge": 10**400, "flag": True, "object": str(threading.Event), "set": [1],
    }  # fmt: skip


def test_with_numbers_turns_tensors_into_numbers_wherever_they_are_and_leaves_the_rest():
    many, thing = torch.ones(2), object()
    got = with_numbers(
        {"loss": torch.tensor(0.5), "deep": {"a": [torch.tensor(1)]}, "many": many, "thing": thing}
    )
    assert got["loss"] == 0.5
    assert type(got["loss"]) is float
    assert got["deep"] == {"a": [1]}
    assert got["many"] is many
    assert got["thing"] is thing


def test_flat_joins_the_names_of_nested_dicts():
    assert flat({"loss": {"train": 1, "test": {"a": 2}}, "lr": 3, "none": {}}) == {
        "loss/train": 1, "loss/test/a": 2, "lr": 3,
    }  # fmt: skip


def test_what_is_frozen_does_not_change_with_its_origin():
    loss, inner = torch.tensor(1.0, requires_grad=True), [torch.tensor(2.0)]
    values = {"loss": loss, "inner": inner, "pair": (loss, "text"), "count": Counter(a=1)}
    kept = frozen(values)
    with torch.no_grad():
        loss.zero_()
    inner[0].zero_()
    inner.append(3)
    values["count"]["a"] = 5
    got = thawed(kept)
    assert got["loss"] == 1.0
    assert type(got["loss"]) is float
    assert got["inner"] == [2.0]
    assert got["pair"] == (1.0, "text")
    assert got["count"] == {"a": 1}


def test_frozen_tensors_hold_no_graph_and_larger_ones_stay_tensors():
    weight = torch.ones(3, requires_grad=True)
    got = thawed(frozen({"x": weight * 2}))["x"]
    assert torch.equal(got, torch.full((3,), 2.0))
    assert not got.requires_grad


def test_objects_that_cannot_be_copied_are_handed_on():
    lock = threading.Lock()
    assert thawed(frozen({"lock": lock}))["lock"] is lock


def test_numpy_values_are_understood_like_tensors():
    numpy = pytest.importorskip("numpy")
    assert (as_number(numpy.float32(0.5)), as_number(numpy.int64(7)), as_number(numpy.ones(3))) == (
        0.5,
        7,
        None,
    )
    assert as_plain_data({"a": numpy.ones((1, 2)), "b": numpy.float32("nan")}) == {
        "a": [[1.0, 1.0]],
        "b": "NaN",
    }
    array = numpy.ones(2)
    kept = frozen({"array": array})
    array[:] = 0
    assert thawed(kept)["array"].tolist() == [1, 1]
