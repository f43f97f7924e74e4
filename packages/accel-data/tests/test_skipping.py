from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

from accel_data import SkipDataLoader, prepare_data_loader, skip_first_batches
from accel_state.errors import ConfigError
from accel_state.gradient_state import GradientState
from accel_state.partial_state import PartialState


class Counting(Dataset):
    def __init__(self, size: int) -> None:
        self.size = size
        self.num_read = 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.num_read += 1
        return index


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(11))


def prepared(loader: DataLoader[Any], num: int = 2, rank: int = 1, **flags: Any) -> Any:
    return prepare_data_loader(loader, num_processes=num, process_index=rank, **flags)


@pytest.mark.parametrize("num_batches", range(6))
@pytest.mark.parametrize(
    "flags", [{}, {"split_batches": True}, {"even_batches": False}, {"dispatch_batches": True}]
)
def test_only_the_first_batches_of_the_rank_are_missing(num_batches: int, flags: dict[str, Any]) -> None:
    for rank in range(2):
        loader = prepared(DataLoader(Counting(17), batch_size=2), rank=rank, **flags)
        whole = [batch.tolist() for batch in loader]
        skipped = skip_first_batches(loader, num_batches)
        assert len(skipped) == max(0, len(whole) - num_batches)
        # What completes the last step is not part of the comparison: a dispatcher repeats the rows it has read.
        kept = slice(None, -1 if flags.get("dispatch_batches") else None)
        assert [batch.tolist() for batch in skipped][kept] == whole[num_batches:][kept]


@pytest.mark.filterwarnings("ignore:The data set is a stream")
@pytest.mark.parametrize("dispatch", [False, True])
def test_streams_are_skipped_by_reading(dispatch: bool) -> None:
    loader = prepared(DataLoader(Stream(), batch_size=2), rank=0, dispatch_batches=dispatch)
    assert [batch.tolist() for batch in skip_first_batches(loader, 1)] == [[4, 5], [8, 9]]


def whole_and_skipped_stream(dispatch: bool) -> tuple[list[Any], list[Any]]:
    loader = prepare_data_loader(DataLoader(Stream(), batch_size=2), dispatch_batches=dispatch)
    whole = [batch.tolist() for batch in loader]
    return whole, [batch.tolist() for batch in skip_first_batches(loader, 2)]


@pytest.mark.filterwarnings("ignore:The data set is a stream")
@pytest.mark.parametrize("dispatch", [False, True])
def test_the_last_step_of_a_skipped_stream_is_completed_from_the_first(
    world: Callable[[int], Any], dispatch: bool
) -> None:
    for whole, skipped in world(2).run(whole_and_skipped_stream, dispatch):
        assert len(whole) == 3
        assert skipped == whole[2:]


class OfThisRank:
    """A batch sampler with the batches of one rank only, of varying sizes."""

    batch_size = None

    def __init__(self, rank: int) -> None:
        self.batches = [[rank], [2 + rank, 4 + rank]]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def read_as_set_to_one_process() -> tuple[int, list[Any]]:
    sampler = OfThisRank(PartialState().process_index)
    loader: Any = prepare_data_loader(DataLoader(range(6), batch_sampler=sampler))  # type: ignore[arg-type]
    assert loader.batch_sampler.batch_sampler is sampler
    loader.batch_sampler.num_processes, loader.batch_sampler.process_index = 1, 0
    return len(loader), [batch.tolist() for batch in loader]


def test_batches_of_a_rank_are_read_as_they_are_where_the_shard_is_set_to_one_process(
    world: Callable[[int], Any],
) -> None:
    assert world(2).run(read_as_set_to_one_process) == [(2, [[0], [2, 4]]), (2, [[1], [3, 5]])]


def test_end_and_remainder_are_known_after_skipping() -> None:
    state = GradientState()
    loader = prepared(DataLoader(Counting(9), batch_size=2))
    seen = [(state.end_of_dataloader, state.remainder) for _ in skip_first_batches(loader, 1)]
    assert seen == [(False, 1), (True, 1)]


def test_no_sample_is_read_to_skip_map_style_data() -> None:
    dataset = Counting(100)
    next(iter(skip_first_batches(prepared(DataLoader(dataset, batch_size=2)), 20)))
    assert dataset.num_read == 2


def test_skipping_takes_no_time_however_much_is_skipped() -> None:
    # Stepping over this many batches one by one would take years.
    loader = prepared(DataLoader(range(10**15), batch_size=2), num=2, rank=1)  # type: ignore[arg-type]
    assert next(iter(skip_first_batches(loader, 10**14))).tolist() == [4 * 10**14 + 2, 4 * 10**14 + 3]


def test_skipping_adds_up_and_leaves_the_loader_as_it_is() -> None:
    loader = prepared(DataLoader(Counting(20), batch_size=2), num=1, rank=0)
    twice = skip_first_batches(skip_first_batches(loader, 3), 4)
    assert [batch.tolist() for batch in twice] == [[14, 15], [16, 17], [18, 19]]
    assert len(list(loader)) == 10


def test_epochs_are_counted_together() -> None:
    loader = prepared(DataLoader(Counting(20), batch_size=2), num=1, rank=0)
    list(skip_first_batches(loader, 3))
    assert loader.iteration == 1
    list(loader)
    assert loader.iteration == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Counting(7), batch_size=2),
        lambda: DataLoader(Counting(7), batch_sampler=BatchSampler(range(7), 2, False)),
        lambda: DataLoader(Counting(7), batch_size=None),
        lambda: DataLoader(Stream(), batch_size=2),
    ],
    ids=["map-style", "batch sampler", "no batches", "stream"],
)
def test_ordinary_loaders_are_skipped_too(make: Any) -> None:
    whole = [torch.as_tensor(batch).tolist() for batch in make()]
    skipped = skip_first_batches(make(), 2)
    assert isinstance(skipped, SkipDataLoader)
    assert [torch.as_tensor(batch).tolist() for batch in skipped] == whole[2:]


def test_the_skip_loader_is_built_like_a_loader() -> None:
    loader = SkipDataLoader(Counting(7), skip_batches=2, batch_size=2)
    state = GradientState()
    assert [(batch.tolist(), state.end_of_dataloader) for batch in loader] == [([4, 5], False), ([6], True)]
    assert len(loader) == 2
    assert not state.in_dataloader


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="must not be negative, got -1"):
        skip_first_batches(DataLoader(Counting(3)), -1)
