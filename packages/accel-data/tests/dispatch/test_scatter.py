from __future__ import annotations

from itertools import product

import pytest
import torch

from accel_data.dispatch.scatter import ScatterPlan
from accel_data.step import NO_BATCH, StepShape, full_step
from accel_state.errors import ConfigError


def test_full_batches_are_handed_on_untouched() -> None:
    batches = [torch.arange(2), torch.arange(2, 4)]
    deal = ScatterPlan(num_ranks=2, rows=2, split=False, even=True).scatter(batches, batches)
    assert all(piece is batch for piece, batch in zip(deal.pieces, batches, strict=True))
    assert deal.shape == full_step(2, 2)


def test_every_small_step() -> None:
    for num, rows, size, split, even in product(
        (1, 2, 3), (1, 2, 3), range(1, 10), (False, True), (False, True)
    ):
        size = min(size, num * rows)
        data = torch.arange(100, 100 + size)
        batches = [data] if split else list(data.split(rows))
        head = [torch.arange(num * rows)] if split else list(torch.arange(num * rows).split(rows))
        deal = ScatterPlan(num, rows, split, even).scatter(batches, head)
        stream = [row for piece in deal.pieces if piece is not NO_BATCH for row in piece.tolist()]
        assert stream[:size] == data.tolist()
        assert [0 if piece is NO_BATCH else len(piece) for piece in deal.pieces] == list(deal.shape.rows)
        assert deal.shape.num_samples == size
        assert stream[size:] == (list(range(-size % num)) if even else [])
        assert deal.num_with_batch == sum(piece is not NO_BATCH for piece in deal.pieces)
        assert deal.num_batches == len(batches)


def test_rows_that_do_not_join_are_completed_with_their_own() -> None:
    batches = [torch.ones(2, 3), torch.full((1, 5), 7.0)]
    deal = ScatterPlan(num_ranks=3, rows=2, split=False, even=True).scatter(batches, batches)
    assert deal.shape == StepShape((2, 2, 2), (2, 1, 0))
    assert [tuple(piece.shape) for piece in deal.pieces] == [(2, 3), (2, 5), (2, 3)]


def test_without_a_known_size_a_rank_that_lacks_a_batch_repeats_rows() -> None:
    batches = [torch.arange(3)]
    deal = ScatterPlan(num_ranks=2, rows=None, split=False, even=True).scatter(batches, batches)
    assert deal.shape.is_even
    assert deal.shape.num_samples == 3


def test_a_batch_whose_rows_are_ambiguous_is_not_split() -> None:
    batch = {"tokens": torch.zeros(4, 8), "ids": torch.arange(2)}
    with pytest.raises(ConfigError, match="batch of 2 samples has 4 rows in its first tensor"):
        ScatterPlan(num_ranks=2, rows=1, split=True, even=True).scatter([batch], [batch], [2])
    alone = ScatterPlan(num_ranks=1, rows=2, split=True, even=False).scatter([batch], [batch], [2])
    assert alone.pieces == [batch]
    assert alone.shape == full_step(2, 1)
