from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice, product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from accel_data import BatchSamplerShard
from accel_data.step import Position
from accel_state.errors import ConfigError


class OneByOne:
    """A batch sampler that can only be read from its beginning."""

    def __init__(self, inner: BatchSampler) -> None:
        self.inner = inner
        self.batch_size = inner.batch_size
        self.drop_last = inner.drop_last

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.inner)

    def __len__(self) -> int:
        return len(self.inner)


def shards(source: Any, num: int, **flags: bool) -> list[BatchSamplerShard]:
    return [BatchSamplerShard(source, num, rank, **flags) for rank in range(num)]


def batches_of_ranks(
    size: int, batch_size: int, num: int, *, drop_last: bool = False, **flags: bool
) -> list[Any]:
    source = BatchSampler(SequentialSampler(range(size)), batch_size, drop_last)
    return [list(shard) for shard in shards(source, num, **flags)]


@pytest.mark.parametrize(
    ("split", "expected"),
    [(False, [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]), (True, [[[0, 1], [4, 5]], [[2, 3], [6, 7]]])],
)
def test_documented_example(split: bool, expected: list[Any]) -> None:
    batches = [[0, 1, 2, 3], [4, 5, 6, 7]]
    source = BatchSampler(range(8), 4, drop_last=False)
    assert list(source) == batches
    assert [list(shard) for shard in shards(source, 2, split_batches=split)] == expected


@pytest.mark.parametrize(
    ("size", "flags", "expected"),
    [
        (
            20,
            {},
            [
                [[0, 1, 2], [6, 7, 8], [12, 13, 14], [18, 19, 0]],
                [[3, 4, 5], [9, 10, 11], [15, 16, 17], [1, 2, 3]],
            ],
        ),
        (2, {}, [[[0, 1, 0]], [[1, 0, 1]]]),
        (
            20,
            {"drop_last": True},
            [[[0, 1, 2], [6, 7, 8], [12, 13, 14]], [[3, 4, 5], [9, 10, 11], [15, 16, 17]]],
        ),
        (
            20,
            {"even_batches": False},
            [[[0, 1, 2], [6, 7, 8], [12, 13, 14], [18, 19]], [[3, 4, 5], [9, 10, 11], [15, 16, 17]]],
        ),
    ],
)
def test_the_end_of_an_epoch(size: int, flags: dict[str, bool], expected: list[Any]) -> None:
    assert batches_of_ranks(size, 3, 2, **flags) == expected


def check_steps(ranks: list[list[list[int]]], size: int, rows: int, *, even: bool, drop_last: bool) -> None:
    """Check what must hold whichever loader deals: the ranks' batches, side by side, are the epoch in its order."""
    num = len(ranks)
    global_rows = num * rows
    kept = size // global_rows * global_rows if drop_last else size
    steps = list(islice(zip(*(batches + [[]] * (len(ranks[0]) - len(batches)) for batches in ranks)), None))
    stream = [index for step in steps for piece in step for index in piece]
    assert stream[:kept] == list(range(kept))
    if even or drop_last:
        assert len({len(batches) for batches in ranks}) == 1
        assert {len(batch) for batches in ranks for batch in batches} <= {rows}
        assert stream[kept:] == list(islice(cycle(range(size)), len(stream) - kept))
        assert len(stream) - kept < global_rows
    else:
        assert len(stream) == kept
        assert len(ranks[0]) == max(map(len, ranks))
    assert all(batch for batches in ranks for batch in batches), "nobody is handed an empty batch"


@pytest.mark.parametrize("num", range(1, 9))
@pytest.mark.parametrize("split", [False, True])
def test_every_small_epoch(num: int, split: bool) -> None:
    for size, rows, even, drop_last in product(range(33), (1, 2, 3, 5, 8), (False, True), (False, True)):
        batch_size = rows * num if split else rows
        source = BatchSampler(SequentialSampler(range(size)), batch_size, drop_last)
        ranks = shards(source, num, split_batches=split, even_batches=even)
        batches = [list(shard) for shard in ranks]
        check_steps(batches, size, rows, even=even, drop_last=drop_last)
        assert [len(shard) for shard in ranks] == [len(one) for one in batches], (size, rows, even, drop_last)


@pytest.mark.parametrize("split", [False, True])
def test_streamed_batches_are_distributed_like_planned_ones(split: bool) -> None:
    for num, size, rows, even, drop_last in product(
        (1, 2, 3, 5), range(28), (1, 2, 4), (False, True), (False, True)
    ):
        batch_size = rows * num if split else rows
        source = BatchSampler(SequentialSampler(range(size)), batch_size, drop_last)
        flags = {"split_batches": split, "even_batches": even}
        planned, streamed = shards(source, num, **flags), shards(OneByOne(source), num, **flags)
        assert [list(one) for one in streamed] == [list(one) for one in planned], (
            num,
            size,
            rows,
            even,
            drop_last,
        )


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("is_planned", [False, True])
def test_what_the_sampler_reports_of_each_step(split: bool, is_planned: bool) -> None:
    for num, size, rows, even in product((1, 2, 3), range(14), (1, 2), (False, True)):
        batch_size = rows * num if split else rows
        source: Any = BatchSampler(SequentialSampler(range(size)), batch_size, drop_last=False)
        source = source if is_planned else OneByOne(source)
        for rank, shard in enumerate(shards(source, num, split_batches=split, even_batches=even)):
            run = shard.new_pass()
            batches = list(run)
            shapes, ends = [step.shape for step in run.steps], [step.end.samples for step in run.steps]
            assert [step.is_last for step in run.steps] == [False] * (len(batches) - 1) + [True] * bool(
                batches
            )
            if run.plan is not None:
                assert run.plan.remainder == size % (num * rows)
            assert [shape.rows[rank] for shape in shapes] == [len(batch) for batch in batches]
            assert ends == [min((step + 1) * num * rows, size) for step in range(len(batches))]
            if even:
                assert sum(shape.num_samples for shape in shapes) == size


@given(
    size=st.integers(0, 60),
    first=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    then=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    steps=st.integers(0, 8),
    is_planned=st.booleans(),
    even=st.booleans(),
)
def test_an_epoch_left_at_n_ranks_continues_at_m(
    size: int, first: tuple[int, int], then: tuple[int, int], steps: int, is_planned: bool, even: bool
) -> None:
    """Whatever the numbers of ranks and the batch sizes are, no sample is lost and none is read twice."""

    def source(rows: int) -> Any:
        sampler = RandomSampler(range(size), generator=torch.Generator().manual_seed(3)) if size else range(0)
        # A generator expression has no known order: the batch sampler must be read from its beginning.
        return BatchSampler(sampler if is_planned else Unordered(sampler), rows, drop_last=False)

    def read(num: int, rows: int, start: Position, stop: int | None) -> tuple[list[int], Position]:
        ranks = [BatchSamplerShard(source(rows), num, rank, even_batches=even) for rank in range(num)]
        runs = [shard.new_pass(start) for shard in ranks]
        batches = [list(islice(run, stop)) for run in runs]
        stream, end = [], start.samples
        for number in range(len(batches[0])):
            shape = list(runs[0].steps)[number].shape
            stream += [
                index
                for one, valid in zip(batches, shape.num_valid)
                if valid
                for index in one[number][:valid]
            ]
            end += shape.num_samples
        return stream, Position(end, 0)

    before, position = read(*first, Position(), steps)
    after, end = read(*then, position, None)
    whole = [index for batch in source(1) for index in batch]
    assert before + after == whole
    assert end.samples == size


class Unordered:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[int]:
        return iter(self.inner)

    def __len__(self) -> int:
        return len(self.inner)


def test_a_resumed_epoch_is_completed_from_its_beginning() -> None:
    for source in (BatchSampler(range(10), 2, False), OneByOne(BatchSampler(range(10), 2, False))):
        shard = BatchSamplerShard(source, 2, 1)
        assert list(shard.new_pass(Position(samples=8, batches=4))) == [[0, 1]]
        assert len(list(shard)) == 3


def test_batches_without_a_size_are_distributed_as_they_are() -> None:
    batches = [[0, 1, 2], [3, 4], [5, 6, 7, 8], [9, 10, 11], [12, 13]]
    first, second = shards(batches, 2, even_batches=False)
    assert list(first) == [[0, 1, 2], [5, 6, 7, 8], [12, 13]]
    assert list(second) == [[3, 4], [9, 10, 11]]
    assert (len(first), len(second)) == (3, 2)


def test_batches_without_a_size_are_made_even_by_the_first_of_them() -> None:
    batches = [[0, 1, 2], [3], [4, 5]]
    assert [list(shard) for shard in shards(batches, 2)] == [[[0, 1, 2], [4, 5]], [[3], [0, 1, 2]]]
    assert [len(shard) for shard in shards(batches, 2)] == [2, 2]
    assert [list(shard) for shard in shards(batches[:1], 3)] == [[[0, 1, 2]]] * 3
    with pytest.raises(ConfigError, match="Pass `split_batches=False`"):
        BatchSamplerShard(batches, 2, 0, split_batches=True)


def test_a_batch_that_does_not_divide_cannot_be_split() -> None:
    with pytest.raises(ConfigError, match=r"multiple of the number of processes \(2\), got 3"):
        BatchSamplerShard(BatchSampler(range(9), 3, False), 2, 0, split_batches=True)


def test_a_rank_outside_of_the_world_is_refused() -> None:
    with pytest.raises(ConfigError, match="between 0 and 1, got 2"):
        BatchSamplerShard(BatchSampler(range(9), 3, False), 2, 2)


def test_even_batches_can_be_changed_between_epochs() -> None:
    shard = BatchSamplerShard(BatchSampler(range(5), 2, False), 2, 1)
    assert list(shard) == [[2, 3], [1, 2]]
    shard.even_batches = False
    assert list(shard) == [[2, 3]]
    assert len(shard) == 1


def test_a_short_batch_in_the_middle_is_completed_and_reported() -> None:
    class Buckets:
        batch_size = 2
        drop_last = False

        def __iter__(self) -> Iterator[list[int]]:
            return iter([[0, 1], [2], [3, 4], [5, 6]])

    ranks = shards(Buckets(), 2)
    runs = [shard.new_pass() for shard in ranks]
    assert [list(run) for run in runs] == [[[0, 1], [3, 4]], [[2, 0], [5, 6]]]
    assert [step.shape.num_valid for step in runs[0].steps] == [(2, 1), (2, 2)]


def test_what_the_given_sampler_offers_stays_within_reach() -> None:
    source = BatchSampler(range(4), 2, False)
    source.purpose = "testing"  # type: ignore[attr-defined]
    shard = BatchSamplerShard(source, 2, 0)
    assert shard.purpose == "testing"
    assert shard.sampler == range(4)
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = shard.nothing_of_the_kind


class Sized:
    """Batches of given sizes, of numbers that continue from batch to batch."""

    def __init__(self, *sizes: int, batch_size: int | None = 4, drop_last: bool = False) -> None:
        self.sizes = sizes
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[list[int]]:
        numbers = iter(range(sum(self.sizes)))
        return (list(islice(numbers, size)) for size in self.sizes)


@pytest.mark.parametrize("batch_size", [4, None])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_short_batch_does_not_end_the_epoch(drop_last: bool, batch_size: int | None) -> None:
    source = Sized(4, 4, 3, 4, 4, 1, 4, drop_last=drop_last, batch_size=batch_size)
    first, second = shards(source, 2, even_batches=False)
    given = list(source)
    assert list(first) == (given[:6:2] if drop_last else given[::2])
    assert list(second) == given[1::2]
    assert [len(first), len(second)] == [3 if drop_last else 4, 3]


def test_a_short_batch_is_completed_where_batches_are_to_be_even() -> None:
    first, second = (list(shard) for shard in shards(Sized(2, 1, 2, batch_size=2), 2))
    assert [first, second] == [[[0, 1], [3, 4]], [[2, 0], [0, 1]]]


def test_batches_of_any_size_are_distributed_where_they_need_not_be_even() -> None:
    first, second = shards(Sized(4, 9, 1, 5), 2, even_batches=False)
    assert [len(batch) for batch in first] == [4, 1]
    assert [len(batch) for batch in second] == [9, 5]


@pytest.mark.parametrize(
    ("sizes", "flags", "message"),
    [
        (
            (4, 5, 4),
            {},
            "`Sized` has a `batch_size` of 4 and yielded a batch of 5. Pass `even_batches=False`",
        ),
        (
            (4, 5, 4),
            {"split_batches": True},
            "`Sized` has a `batch_size` of 4 and yielded a batch of 5. Pass `split_batches=False`",
        ),
        (
            (4, 2, 4),
            {"split_batches": True, "even_batches": False},
            "`split_batches` cannot split a batch of 2, which `Sized` yielded before its last, over 2 processes",
        ),
    ],
)
def test_a_batch_that_cannot_be_distributed_is_an_error_that_names_the_sampler(
    sizes: tuple[int, ...], flags: dict[str, bool], message: str
) -> None:
    for shard in shards(Sized(*sizes), 2, **flags):
        with pytest.raises(ConfigError, match=message):
            list(shard)
