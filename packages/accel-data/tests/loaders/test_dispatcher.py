from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

from accel_data import prepare_data_loader
from accel_ops import gather
from accel_state.errors import ConfigError, DistributedOperationException, StateError
from accel_state.gradient_state import GradientState
from accel_state.partial_state import PartialState
from accel_state.runtime import current_runtime


class Sentences(IterableDataset):
    """Samples of a tensor, a text, and a number of their own tokens."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for index in range(self.size):
            yield {"id": index, "text": f"sentence {index}", "tokens": torch.full((index % 3 + 1,), index)}


def pad_to_longest(samples: list[dict[str, Any]]) -> dict[str, Any]:
    tokens = torch.nn.utils.rnn.pad_sequence([sample["tokens"] for sample in samples], batch_first=True)
    return {
        "id": torch.tensor([sample["id"] for sample in samples]),
        "text": [sample["text"] for sample in samples],
        "tokens": tokens,
        "note": "for all",
    }


def dispatch_sentences(size: int, split: bool) -> list[dict[str, Any]]:
    world_size = PartialState().num_processes
    loader = DataLoader(Sentences(size), batch_size=2 * world_size if split else 2, collate_fn=pad_to_longest)
    return list(prepare_data_loader(loader, split_batches=split))


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("num", [2, 3])
def test_texts_and_ragged_tensors_arrive_row_by_row(
    world: Callable[[int], Any], num: int, split: bool
) -> None:
    size = 4 * num + 1
    ranks = world(num).run(dispatch_sentences, size, split)
    ids = [index for step in zip(*ranks, strict=True) for batch in step for index in batch["id"].tolist()]
    assert ids[:size] == list(range(size))
    for batches in ranks:
        for batch, rows in zip(batches, (2, 2, 1), strict=True):
            assert len(batch["text"]) == len(batch["id"]) == len(batch["tokens"]) == rows
            assert batch["text"] == [f"sentence {index}" for index in batch["id"].tolist()]
            assert batch["tokens"][:, 0].tolist() == batch["id"].tolist()
            assert batch["note"] == "for all"


class Failing(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        yield from range(8)
        raise KeyError("the disk is full")


def read_until_it_fails() -> tuple[list[list[int]], str]:
    seen: list[list[int]] = []
    try:
        for batch in prepare_data_loader(DataLoader(Failing(), batch_size=2)):
            seen.append(batch.tolist())
            assert not GradientState().end_of_dataloader
            torch.distributed.barrier()
    except (KeyError, StateError) as error:
        return seen, f"{type(error).__name__}: {error}"
    return seen, "no error"


def test_an_error_while_reading_reaches_every_rank_where_its_step_would_have_come(
    world: Callable[[int], Any],
) -> None:
    first, second = world(2).run(read_until_it_fails, timeout_s=20)
    assert first == ([[0, 1], [4, 5]], "KeyError: 'the disk is full'")
    assert second[0] == [[2, 3], [6, 7]]
    assert second[1].startswith("StateError: Rank 0 reads the data for all ranks and failed")


def fail_at_once() -> str:
    class Broken(IterableDataset):
        def __iter__(self) -> Iterator[int]:
            raise KeyError("nothing there")

    try:
        list(prepare_data_loader(DataLoader(Broken())))
    except (KeyError, StateError) as error:
        return type(error).__name__
    return "no error"


def test_an_error_before_the_first_step_reaches_every_rank(world: Callable[[int], Any]) -> None:
    assert world(2).run(fail_at_once, timeout_s=20) == ["KeyError", "StateError"]


def columns(
    data: Any, tensor_slice: slice, process_index: int | None = None, num_processes: int | None = None
) -> Any:
    return data[tensor_slice] * 10 + (process_index or 0)


def dispatch_with_a_slice_function() -> list[list[int]]:
    loader = DataLoader(list(range(8)), batch_size=2)
    prepared = prepare_data_loader(loader, dispatch_batches=True, slice_fn_for_dispatch=columns)
    return [batch.tolist() for batch in prepared]


def test_a_slice_function_returns_each_ranks_part(world: Callable[[int], Any]) -> None:
    assert world(2).run(dispatch_with_a_slice_function) == [[[0, 10], [40, 50]], [[21, 31], [61, 71]]]


class Growing(IterableDataset):
    """Batches whose size, dtype and structure change from step to step."""

    def __iter__(self) -> Iterator[Any]:
        for size in (1, 5000, 3, 200_000, 0, 7):
            yield {"x": torch.full((2, size), size, dtype=torch.int32)}
        yield {"x": torch.ones(2, 3, dtype=torch.bfloat16), "y": (torch.tensor(5.0), [torch.zeros(2, 0)])}
        yield {"x": torch.tensor([1 + 2j, 3j]), "flag": torch.tensor([True, False])}


def dispatch_growing() -> list[Any]:
    return list(prepare_data_loader(DataLoader(Growing(), batch_size=None)))


def test_batches_may_change_in_size_and_structure(world: Callable[[int], Any]) -> None:
    expected = list(Growing())
    ranks = world(2).run(dispatch_growing)
    received = [batch for step in zip(*ranks, strict=True) for batch in step]
    assert len(received) == len(expected)
    for batch, original in zip(received, expected, strict=True):
        assert batch.keys() == original.keys()
        assert torch.equal(batch["x"], original["x"])
        assert batch["x"].dtype == original["x"].dtype
    assert received[6]["y"][0].item() == 5.0
    assert received[7]["flag"].tolist() == [True, False]


def leave_early_and_come_back() -> list[list[int]]:
    loader = prepare_data_loader(DataLoader(list(range(12)), batch_size=2), dispatch_batches=True)
    seen = []
    for batch in loader:
        seen.append(batch.tolist())
        break
    seen += [batch.tolist() for batch in loader]
    return seen


def test_a_loop_left_early_does_not_leave_a_step_behind(world: Callable[[int], Any]) -> None:
    first, second = world(2).run(leave_early_and_come_back)
    assert first == [[0, 1], [0, 1], [4, 5], [8, 9]]
    assert second == [[2, 3], [2, 3], [6, 7], [10, 11]]


def expanding(samples: list[int]) -> torch.Tensor:
    return torch.tensor([value for sample in samples for value in (sample, sample)])


def dispatch_expanded() -> list[Any]:
    prepared = prepare_data_loader(
        DataLoader(list(range(5)), batch_size=2, collate_fn=expanding), dispatch_batches=True
    )
    return [(batch.tolist(), prepared.step_shape.num_valid) for batch in prepared]  # type: ignore[attr-defined]


def test_batches_whose_rows_are_not_samples_are_handed_on_whole(world: Callable[[int], Any]) -> None:
    first, second = world(2).run(dispatch_expanded)
    assert first == [([0, 0, 1, 1], (4, 4)), ([4, 4], (2, 0))]
    assert second == [([2, 2, 3, 3], (4, 4)), ([4, 4], (2, 0))]


def test_a_batch_without_rows_cannot_be_split() -> None:
    loader = DataLoader([1, 2, 3, 4], batch_size=2, collate_fn=lambda samples: 7.0)
    prepared = prepare_data_loader(
        loader, num_processes=2, process_index=0, dispatch_batches=True, split_batches=True
    )
    with pytest.raises(ConfigError, match="batch of type `float` has no rows"):
        next(iter(prepared))


def test_a_batch_that_does_not_divide_cannot_be_split() -> None:
    with pytest.raises(ConfigError, match=r"number of processes \(2\), got 3"):
        prepare_data_loader(
            DataLoader([1, 2, 3], batch_size=3),  # type: ignore[arg-type]
            num_processes=2,
            process_index=0,
            dispatch_batches=True,
            split_batches=True,
        )


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, [[0, 1], [4]]),
        ({"even_batches": False}, [[0, 1], [4]]),
        ({"split_batches": True}, [[0], [2], [4]]),
    ],
)
def test_the_last_dispatched_step_is_split_over_the_ranks(flags: dict[str, Any], expected: list[Any]) -> None:
    loader = DataLoader(list(range(5)), batch_size=2)
    prepared = prepare_data_loader(loader, num_processes=2, process_index=0, dispatch_batches=True, **flags)
    assert [batch.tolist() for batch in prepared] == expected
    assert len(prepared) == len(expected)


def test_incomplete_steps_are_dropped() -> None:
    loader = DataLoader(list(range(7)), batch_size=2, drop_last=True)
    prepared = prepare_data_loader(loader, num_processes=2, process_index=1, dispatch_batches=True)
    assert [batch.tolist() for batch in prepared] == [[2, 3]]
    assert len(prepared) == 1


def nothing_for_the_third(samples: list[int]) -> torch.Tensor | None:
    return None if samples[0] == 4 else torch.tensor(samples)


def dispatch_none() -> list[Any]:
    given = DataLoader(range(8), batch_size=2, collate_fn=nothing_for_the_third)
    return [
        None if batch is None else batch.tolist()
        for batch in prepare_data_loader(given, dispatch_batches=True)
    ]


def test_a_batch_that_is_none_is_one(world: Callable[[int], Any]) -> None:
    assert world(2).run(dispatch_none) == [[[0, 1], None], [[2, 3], [6, 7]]]


def gather_while_the_other_reads(size: int, debug: bool) -> tuple[str, list[int]]:
    current_runtime().debug = debug
    rank = PartialState().process_index
    loader = prepare_data_loader(DataLoader(range(8), batch_size=1), dispatch_batches=True)
    told = "not noticed"
    try:
        for _ in loader:
            if rank == 1:
                gather(torch.ones(size))
    except DistributedOperationException as error:
        told = str(error)
    return told, gather(torch.tensor(rank)).tolist()


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("size", [1, 4_096, 1_000_000])
def test_another_operation_instead_of_the_next_batch_is_an_error_on_every_rank(
    world: Callable[[int], Any], size: int, debug: bool
) -> None:
    for told, after in world(2).run(gather_while_the_other_reads, size, debug):
        assert "Process 0: `accel_data.dispatch_batch`" in told
        assert f"Process 1: `accel_ops.gather` on [{size}]" in told
        assert after == [0, 1]


def change_each_batch_in_place() -> list[list[int]]:
    loader = prepare_data_loader(DataLoader(torch.arange(13), batch_size=2), dispatch_batches=True)  # type: ignore[arg-type]
    read = []
    for batch in loader:
        read.append(batch.tolist())
        batch += 100
    return read


def test_a_batch_that_is_changed_in_place_does_not_change_what_completes_the_last_step(
    world: Callable[[int], Any],
) -> None:
    assert world(2).run(change_each_batch_in_place) == [
        [[0, 1], [4, 5], [8, 9], [12]],
        [[2, 3], [6, 7], [10, 11], [0]],
    ]


def last_of_some_rank(size: int) -> list[bool | None]:
    loader = prepare_data_loader(
        DataLoader(Sentences(size), batch_size=2, collate_fn=pad_to_longest),
        dispatch_batches=True,
        even_batches=False,
    )
    return [loader.ends_some_rank for _ in loader]


def test_each_rank_knows_that_a_batch_is_the_last_of_another_one(world: Callable[[int], Any]) -> None:
    assert world(2).run(last_of_some_rank, 10) == [[False, True, True], [False, True]]


def short_in_the_middle(samples: list[int]) -> torch.Tensor:
    return torch.tensor(samples[:1] if samples[0] == 3 else samples)


def dispatch_a_short_batch() -> tuple[list[list[int]], str]:
    given = DataLoader(range(9), batch_size=3, collate_fn=short_in_the_middle)
    seen: list[list[int]] = []
    try:
        for batch in prepare_data_loader(
            given, dispatch_batches=True, split_batches=True, even_batches=False
        ):
            seen.append(batch.tolist())
    except (ConfigError, StateError) as error:
        return seen, str(error)
    return seen, "no error"


def test_a_batch_that_some_rank_lacks_before_the_end_is_an_error_on_every_rank(
    world: Callable[[int], Any],
) -> None:
    for rank, (seen, message) in enumerate(world(3).run(dispatch_a_short_batch, timeout_s=20)):
        assert seen == [[rank]]
        assert "not the last has rows for 1 of 3 processes" in message


class Rows(Dataset):
    """Returns a batch for a list of indices."""

    def __getitem__(self, indices: list[int]) -> torch.Tensor:
        return torch.tensor(indices)


def resume_batches_of_the_data_set() -> list[Any]:
    def make() -> Any:
        sampler = BatchSampler(range(23), batch_size=3, drop_last=False)
        return prepare_data_loader(
            DataLoader(Rows(), sampler=sampler, batch_size=None), dispatch_batches=True, even_batches=False
        )

    loader, read = make(), []
    for batch in loader:
        read.append(batch.tolist())
        state = loader.state_dict()
        break
    resumed = make()
    resumed.load_state_dict(state)
    return [len(loader), read + [batch.tolist() for batch in resumed]]


@pytest.mark.parametrize("num", [1, 3])
def test_a_pass_resumes_after_the_indices_of_the_batches_that_the_data_set_has_made(
    world: Callable[[int], Any], num: int
) -> None:
    lengths, batches = zip(*world(num).run(resume_batches_of_the_data_set), strict=True)
    given = [list(range(first, min(first + 3, 23))) for first in range(0, 23, 3)]
    assert list(batches) == [given[rank::num] for rank in range(num)]
    assert list(lengths) == [len(one) for one in batches]
