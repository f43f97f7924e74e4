from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accel_ops import concatenate, pad_input_tensors, slice_tensors
from accel_state.errors import ConfigError

Pair = namedtuple("Pair", "left right")


@dataclass
class Batch:
    rows: torch.Tensor


def test_slices_take_rows_and_leave_the_rest():
    data = {"x": torch.arange(6).view(3, 2), "scale": torch.tensor(2.0), "name": "n"}
    result = slice_tensors(data, slice(1, 3))
    assert result["x"].tolist() == [[2, 3], [4, 5]]
    assert result["scale"].item() == 2
    assert result["name"] == "n"
    assert slice_tensors([torch.arange(3)], torch.tensor([2, 0]), process_index=0, num_processes=2)[
        0
    ].tolist() == [2, 0]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_concatenate_undoes_slicing(sizes):
    rows = torch.arange(2 * sum(sizes)).view(-1, 2)
    data = {"a": Pair(rows, [rows * 2]), "b": Batch(rows)}
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    parts = [slice_tensors(data, slice(end - size, end)) for end, size in zip(ends, sizes, strict=True)]
    joined = concatenate(parts)
    assert type(joined["a"]) is Pair
    assert torch.equal(joined["a"].left, rows)
    assert torch.equal(joined["a"].right[0], rows * 2)
    assert torch.equal(joined["b"].rows, rows)


def test_concatenate_counts_a_scalar_as_one_row_and_follows_dim():
    assert concatenate([torch.tensor(1), torch.tensor(2)]).tolist() == [1, 2]
    assert concatenate([torch.zeros(2, 1), torch.ones(2, 1)], dim=1).shape == (2, 2)


def test_concatenate_refuses_what_is_no_tensor():
    with pytest.raises(TypeError, match="Can only concatenate tensors but got <class 'str'>"):
        concatenate([["a"], ["b"]])


def test_concatenate_hands_on_what_a_single_structure_has():
    joined = concatenate([{"name": "a", "rows": torch.zeros(2, 1)}])
    assert joined["name"] == "a"
    assert joined["rows"].shape == (2, 1)


@given(st.integers(1, 20), st.integers(1, 8))
def test_padded_rows_divide_evenly_and_repeat_the_last(batch_size, num_processes):
    rows = torch.arange(batch_size)
    padded = pad_input_tensors([rows], batch_size, num_processes)[0]
    assert len(padded) % num_processes == 0
    assert len(padded) - batch_size < num_processes
    assert padded[:batch_size].tolist() == rows.tolist()
    assert set(padded[batch_size:].tolist()) <= {batch_size - 1}


def test_tensors_without_the_batch_are_not_padded():
    mask, scalar = torch.ones(7, 7), torch.tensor(1)
    assert pad_input_tensors([mask, scalar], 3, 2)[0] is mask
    assert pad_input_tensors(torch.ones(2, 3), 3, 2, dim=1).shape == (2, 4)


@pytest.mark.parametrize(
    "other",
    [{"x": torch.ones(1), "y": torch.ones(1)}, {"y": torch.ones(1)}, [torch.ones(1)], torch.ones(1)],
)
def test_structures_that_differ_are_not_joined_in_part(other):
    with pytest.raises(ConfigError, match=r"must hold equal structures to concatenate, but one has the keys"):
        concatenate([{"x": torch.ones(1)}, other])


def test_nothing_is_not_joined():
    with pytest.raises(ConfigError, match="at least one structure"):
        concatenate([])
