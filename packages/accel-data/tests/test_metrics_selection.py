from __future__ import annotations

import torch

from accel_data.metrics import Selection, items_without_rows, tensor_without_rows
from accel_data.step import StepShape, full_step


def test_rows_that_repeat_others_are_removed() -> None:
    # Two ranks with three rows each; five of them are samples.
    gathered = {"x": torch.arange(6), "y": (torch.arange(12).view(6, 2),)}
    kept = Selection(StepShape((3, 3), (3, 2)), (0, 1), 2).select_rows(gathered)
    assert kept["x"].tolist() == [0, 1, 2, 3, 4]
    assert kept["y"][0][:, 0].tolist() == [0, 2, 4, 6, 8]


def test_what_is_together_is_a_view() -> None:
    gathered = torch.arange(6)
    kept = Selection(StepShape((3, 3), (3, 1)), (0, 1), 2).select_rows(gathered)
    assert kept.data_ptr() == gathered.data_ptr()


def test_rows_in_the_middle_can_be_removed() -> None:
    kept = Selection(StepShape((2, 2, 2), (2, 1, 2)), (0, 1, 2), 3).select_rows(torch.arange(6))
    assert kept.tolist() == [0, 1, 2, 4, 5]


def test_of_ranks_with_the_same_data_one_is_kept() -> None:
    # Four ranks, two of which read the same each.
    kept = Selection(full_step(2, 2), (0, 2), 4).select_rows(torch.tensor([0, 1, 0, 1, 2, 3, 2, 3]))
    assert kept.tolist() == [0, 1, 2, 3]


def test_nothing_is_kept_of_a_step_without_samples() -> None:
    assert Selection(StepShape((2, 2), (0, 0)), (0, 1), 2).select_rows(torch.arange(4)).tolist() == []


def test_complete_batches_are_removed_whatever_their_rows() -> None:
    kept = Selection(StepShape((1, 1), (1, 0)), (0, 1), 2, counts_batches=True).select_rows(
        {"a": torch.arange(6), "b": torch.arange(4)}
    )
    assert kept["a"].tolist() == [0, 1, 2]
    assert kept["b"].tolist() == [0, 1]


def test_tensors_with_other_rows_come_from_every_rank_that_reads() -> None:
    gathered = {"rows": torch.arange(6), "means": torch.tensor([0.5, 1.5])}
    kept = Selection(StepShape((3, 3), (3, 1)), (0, 1), 2).select_rows(gathered)
    assert kept["rows"].tolist() == [0, 1, 2, 3]
    assert kept["means"].tolist() == [0.5, 1.5]


def test_a_row_for_each_sample_is_distinguished_from_other_numbers_of_rows() -> None:
    assert tensor_without_rows({"x": torch.zeros(3), "y": [torch.zeros(3, 2)]}, 3) is None
    assert tensor_without_rows(torch.tensor(1.0), 1) is None
    assert (
        tensor_without_rows([torch.zeros(3), torch.zeros(6, 2)], 3) == "A tensor of shape (6, 2) has 6 rows"
    )
    assert tensor_without_rows(torch.tensor(1.0), 2) == "A tensor of shape () has no rows"


def test_an_item_for_each_sample_is_distinguished_from_other_objects() -> None:
    assert items_without_rows(["a", "b"], 2) is None
    assert items_without_rows([torch.zeros(3)], 3) == "A list has 1 items"
    assert items_without_rows({"a": 1}, 3) == "An object of type `dict` has no rows"
