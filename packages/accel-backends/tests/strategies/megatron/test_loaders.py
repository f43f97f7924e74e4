import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from accel_backends.strategies.megatron.loaders import micro_batches, with_larger_batches
from accel_state.errors import ConfigError


def test_rows_are_divided_almost_evenly():
    parts = micro_batches({"input_ids": torch.arange(5)[:, None], "name": "a"}, 2)
    assert [part["input_ids"].flatten().tolist() for part in parts] == [[0, 1, 2], [3, 4]]
    assert [part["name"] for part in parts] == ["a", "a"]
    assert len(micro_batches({"input_ids": torch.arange(1)[:, None]}, 4)) == 1


def test_a_loader_gives_all_micro_batches_at_once():
    loader = with_larger_batches(DataLoader(list(range(7)), batch_size=2), 2)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6]]


def test_a_loader_without_a_batch_size_is_refused():
    sampler = BatchSampler(SequentialSampler(range(4)), 2, False)
    with pytest.raises(ConfigError, match="batch_size"):
        with_larger_batches(DataLoader(list(range(4)), batch_sampler=sampler), 2)
