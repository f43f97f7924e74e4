from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from accel_data import IterableDatasetShard


class Stream(IterableDataset):
    part = 0

    def __iter__(self) -> Any:
        return iter(())


def test_attributes_of_the_data_set_are_read_and_set_through_it() -> None:
    stream = Stream()
    shard = IterableDatasetShard(stream)
    shard.part = 3
    assert (shard.part, stream.part) == (3, 3)
    assert "part" not in shard.__dict__
    shard.unknown = 1
    assert not hasattr(stream, "unknown")


def test_the_attributes_of_a_shard_are_its_own() -> None:
    stream = Stream()
    stream.batch_size = 7  # type: ignore[attr-defined]
    shard = IterableDatasetShard(stream, 2)
    shard.batch_size = 3
    assert (shard.batch_size, stream.batch_size) == (3, 7)  # type: ignore[attr-defined]


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_represent_the_data_set_too(twin: Any) -> None:
    assert twin(IterableDatasetShard(Stream())).part == 0


def test_what_neither_has_is_missing() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        IterableDatasetShard(Stream()).nothing
