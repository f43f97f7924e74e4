from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from accel_data.loaders.reader import Reader
from accel_data.loaders.torch_loader import clone_loader, source_of
from accel_data.samplers.batch_shard import BatchSamplerShard
from accel_data.step import Position


class Counted(IterableDataset):
    """A stream that counts what it has yielded, and tells the count as its state."""

    def __init__(self) -> None:
        self.count = 0

    def __iter__(self) -> Iterator[int]:
        while self.count < 6:
            self.count += 1
            yield self.count

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


class Namesake(DataLoader):
    """A loader class whose own names are those of a reader, and whose batches are its own."""

    _start = fields = latest = "mine"

    def read(self) -> str:
        return "mine"

    def __iter__(self) -> Any:
        assert self.read() == self._start == self.fields == self.latest == "mine"
        return (batch * 10 for batch in super().__iter__())


@pytest.mark.parametrize("loader_class", [DataLoader, Namesake])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_each_batch_of_a_stream_comes_with_its_number_of_samples(
    loader_class: type[DataLoader], num_workers: int
) -> None:
    loader = loader_class(Counted(), batch_size=4, num_workers=num_workers)
    factor = 1 if loader_class is DataLoader else 10
    batches = Reader(source_of(loader)).read_stream()
    read = [(batch.tolist(), fetched and fetched.num_samples) for batch, fetched in batches]
    assert read == [([factor, 2 * factor, 3 * factor, 4 * factor], 4), ([5 * factor, 6 * factor], 2)]


def test_the_state_of_a_data_set_is_a_copy() -> None:
    dataset = Counted()
    reader = Reader(source_of(DataLoader(dataset, batch_size=2)))
    next(reader.read_stream())
    state = reader.states(dataset).dataset
    dataset.count = 9
    assert state == {"count": 2}
    assert reader.states(None).dataset is None


def sharded(**options: Any) -> tuple[DataLoader, BatchSamplerShard]:
    shard = BatchSamplerShard(BatchSampler(range(8), 2, drop_last=False))
    loader = DataLoader(torch.arange(8), batch_size=2, **options)
    return clone_loader(loader, batch_sampler=shard), shard


def test_passes_start_at_their_position_and_share_persistent_workers() -> None:
    loader, shard = sharded(num_workers=1, persistent_workers=True)
    reader = Reader(source_of(loader))
    workers = []
    for samples in (0, 4, 2):
        read = [batch.tolist() for batch in reader.read_indices(shard.new_pass(Position(samples)))]
        assert read == [[first, first + 1] for first in range(samples, 8, 2)]
        workers.append(reader.loader._iterator._workers[0].pid)
    assert len(set(workers)) == 1
    # The sampler that the user sees knows nothing of these passes.
    assert len(list(shard)) == 4


def test_a_setting_that_has_changed_holds_from_the_next_pass_on() -> None:
    loader, shard = sharded()
    reader = Reader(source_of(loader))
    next(reader.read_indices(shard.new_pass()))
    loader.collate_fn = list
    assert next(reader.read_indices(shard.new_pass())) == [0, 1]
