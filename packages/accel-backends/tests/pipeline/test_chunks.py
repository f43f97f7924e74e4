"""Batches in chunks, and outputs of chunks as one."""

import pytest
import torch

from accel_backends.pipeline.chunks import chunk_bounds, in_chunks, joined
from accel_state.errors import ConfigError


def test_chunks_differ_by_a_row_at_most_and_none_is_empty():
    assert chunk_bounds(7, 3) == [(0, 3), (3, 5), (5, 7)]
    assert chunk_bounds(2, 4) == [(0, 1), (1, 2)]
    assert chunk_bounds(0, 4) == [(0, 0)]


def test_what_has_no_row_for_each_is_in_every_chunk():
    batch = {"rows": torch.arange(5), "positions": torch.arange(3), "scale": torch.tensor(2.0), "flag": True}
    first, second = in_chunks(batch, 5, 2)
    assert first["rows"].tolist() == [0, 1, 2]
    assert second["rows"].tolist() == [3, 4]
    for chunk in (first, second):
        assert chunk["positions"].tolist() == [0, 1, 2]
        assert chunk["scale"] == 2
        assert chunk["flag"] is True


def test_outputs_are_put_together_or_refused():
    chunks = [{"rows": torch.ones(2, 1), "none": None}, {"rows": torch.zeros(1, 1), "none": None}]
    whole = joined(chunks, [2, 1])
    assert whole["rows"].flatten().tolist() == [1, 1, 0]
    assert whole["none"] is None
    with pytest.raises(ConfigError, match=r"shape \(\) for a chunk of 2 rows.*a loss: leave out the labels"):
        joined([torch.tensor(1.0), torch.tensor(2.0)], [2, 1])
    with pytest.raises(ConfigError, match="returns a `str` that differs between the chunks"):
        joined(["a", "b"], [2, 1])
    assert joined([torch.tensor(1.0)], [2]) == 1
