from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from accel_ops import send_to_device


class OldEncoding(dict):
    """Moves itself, but does not know `non_blocking`."""

    def to(self, device: Any) -> OldEncoding:
        return OldEncoding({key: value.to(device) for key, value in self.items()})


class Broken:
    def to(self, device: Any, non_blocking: bool = False) -> Broken:
        raise TypeError("not today")


@dataclass
class Batch:
    rows: torch.Tensor
    label: str


def test_tensors_move_in_any_structure_and_the_rest_stays():
    data = {"a": [torch.ones(2), "text"], "b": (Batch(torch.ones(1), "x"), 5)}
    moved = send_to_device(data, "meta")
    assert moved["a"][0].device.type == "meta"
    assert moved["a"][1] == "text"
    assert moved["b"][0].rows.device.type == "meta"
    assert moved["b"][0].label == "x"
    assert moved["b"][1] == 5
    assert data["a"][0].device.type == "cpu"


@pytest.mark.parametrize("skip_keys", ["keep", ["keep", "other"]])
def test_skipped_keys_stay_on_every_level(skip_keys):
    moved = send_to_device(
        {"keep": torch.ones(1), "in": {"keep": torch.ones(1), "go": torch.ones(1)}},
        "meta",
        skip_keys=skip_keys,
    )
    assert moved["keep"].device.type == "cpu"
    assert moved["in"]["keep"].device.type == "cpu"
    assert moved["in"]["go"].device.type == "meta"


def test_objects_decide_how_they_move():
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 1), torch.ones(2, 1)])
    moved = send_to_device(packed, "meta")
    assert moved.data.device.type == "meta"
    assert moved.batch_sizes.device.type == "cpu"


def test_objects_that_do_not_know_non_blocking_move_without():
    moved = send_to_device([OldEncoding(a=torch.ones(1))], "meta", non_blocking=True)
    assert type(moved[0]) is OldEncoding
    assert moved[0]["a"].device.type == "meta"


def test_an_error_of_the_object_is_not_hidden():
    with pytest.raises(TypeError, match="not today"):
        send_to_device(Broken(), "cpu", non_blocking=True)


def test_a_class_with_a_to_method_is_no_object_to_move():
    assert send_to_device([Broken], "meta") == [Broken]


def test_moving_keeps_the_history():
    weight = torch.ones(1, requires_grad=True)
    (send_to_device({"x": weight * 2}, "cpu")["x"]).backward()
    assert weight.grad is not None
    assert weight.grad.item() == 2


class Edge(NamedTuple):
    start: torch.Tensor
    to: torch.Tensor


def test_a_field_called_to_is_no_way_to_move():
    moved = send_to_device(Edge(torch.ones(1), torch.ones(1)), "meta")
    assert [rows.device.type for rows in moved] == ["meta", "meta"]
