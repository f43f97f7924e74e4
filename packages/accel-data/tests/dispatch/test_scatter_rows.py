from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch

from accel_data.dispatch.scatter import can_join, join_rows, num_rows, take_rows

Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (torch.zeros(3, 2), 3),
        ({"scale": torch.tensor(1.0), "x": torch.zeros(4)}, 4),
        (["a", "b"], 2),
        ([{"id": 1}, {"id": 2}, {"id": 3}], 3),
        ([("a", "b"), ("c", "d"), ("e", "f")], 2),
        ((torch.zeros(2), ["a", "b"]), 2),
        ({"name": "no rows"}, None),
        (7, None),
    ],
)
def test_rows_are_those_of_tensors_else_items_of_lists(batch: Any, expected: int | None) -> None:
    assert num_rows(batch) == expected


def test_rows_are_taken_from_tensors_and_lists_alike() -> None:
    batch = {
        "x": torch.arange(4),
        "text": ["a", "b", "c", "d"],
        "all": [1, 2, 3],
        "pair": Pair(torch.ones(4, 2), "n"),
    }
    part = take_rows(batch, 1, 3)
    assert part["x"].tolist() == [1, 2]
    assert part["text"] == ["b", "c"]
    assert part["all"] == [1, 2, 3]
    assert isinstance(part["pair"], Pair)
    assert part["pair"].left.shape == (2, 2)


def test_columns_of_texts_are_split_row_by_row() -> None:
    assert take_rows([("a", "b"), ("c", "d")], 1, 2) == [("b",), ("d",)]


def test_joining_undoes_taking() -> None:
    batch = {"x": torch.arange(8).view(4, 2), "text": ["a", "b", "c", "d"], "scale": torch.tensor(2.0)}
    joined = join_rows([take_rows(batch, 0, 1), take_rows(batch, 1, 4)])
    assert torch.equal(joined["x"], batch["x"])
    assert joined["text"] == batch["text"]
    assert joined["scale"].item() == 2.0


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (torch.zeros(2, 3), torch.zeros(5, 3), True),
        (torch.zeros(2, 3), torch.zeros(2, 4), False),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int), False),
        ({"x": torch.zeros(2)}, {"x": torch.zeros(1)}, True),
        ({"x": torch.zeros(2)}, [torch.zeros(2)], False),
        ([torch.zeros(2)], [torch.zeros(2), torch.zeros(2)], False),
        (["a"], ["b", "c"], True),
    ],
)
def test_batches_join_if_their_rows_have_the_same_shape(one: Any, other: Any, expected: bool) -> None:
    assert can_join(one, other) is expected
