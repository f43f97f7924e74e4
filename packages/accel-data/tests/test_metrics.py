from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

from accel_data import DataLoaderShard, gather_for_metrics, prepare_data_loader, skip_first_batches
from accel_state.errors import StateError
from accel_state.partial_state import PartialState

MAP_CASES = list(product((0, 1, 2, 5, 8, 13), (1, 2, 3), (False, True), (False, True), (False, True)))


class Numbers(IterableDataset):
    """The numbers below `size`, with or without a length."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size))


class SizedNumbers(Numbers):
    def __len__(self) -> int:
        return self.size


class Chunks(Dataset):
    """Makes its own batches: item i has two rows."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([2 * index, 2 * index + 1])


def gathered(loader: Any, *, use_gather_object: bool = False) -> list[int]:
    """Return what evaluation over the loop sees."""
    seen: list[int] = []
    for batch in loader:
        data = (
            batch.tolist() if use_gather_object else {"x": batch, "nested": (batch * 2, [batch.view(-1, 1)])}
        )
        result = gather_for_metrics(data, use_gather_object=use_gather_object)
        if use_gather_object:
            seen += result
            continue
        assert torch.equal(result["nested"][0], result["x"] * 2)
        assert torch.equal(result["nested"][1][0].view(-1), result["x"])
        seen += result["x"].tolist()
    return seen


def evaluate_map_style() -> list[Any]:
    world_size = PartialState().num_processes
    wrong: list[Any] = []
    for size, rows, split, even, objects in MAP_CASES:
        batch_size = rows * world_size if split else rows
        loader = DataLoader(list(range(size)), batch_size=batch_size)
        prepared = prepare_data_loader(loader, split_batches=split, even_batches=even)
        seen = gathered(prepared, use_gather_object=objects)
        # Without even batches a rank that has run out of batches is not there to see the last step.
        expected = list(range(size)) if even else list(range(min(size, len(prepared) * rows * world_size)))
        if seen != expected:
            wrong.append((size, rows, split, even, objects, seen))
    return wrong


@pytest.mark.parametrize("num", [2, 3])
def test_map_style_evaluation_sees_every_sample_once_and_in_order(
    world: Callable[[int], Any], num: int
) -> None:
    assert world(num).run(evaluate_map_style) == [[]] * num


def evaluate_streams(dispatch: bool) -> list[Any]:
    world_size = PartialState().num_processes
    wrong: list[Any] = []
    for size, rows, split, workers in product((0, 1, 2, 5, 8, 13), (1, 3), (False, True), (0, 1)):
        if workers and (size, rows) != (13, 3):
            continue
        for kind in (Numbers, SizedNumbers):
            loader = DataLoader(
                kind(size), batch_size=rows * world_size if split else rows, num_workers=workers
            )
            prepared = prepare_data_loader(loader, split_batches=split, dispatch_batches=dispatch)
            if (seen := gathered(prepared)) != list(range(size)):
                wrong.append((size, rows, split, kind.__name__, seen))
    return wrong


@pytest.mark.parametrize("dispatch", [False, True])
@pytest.mark.parametrize("num", [2, 3])
def test_stream_evaluation_sees_every_sample_once_and_in_order(
    world: Callable[[int], Any], num: int, dispatch: bool
) -> None:
    assert world(num).run(evaluate_streams, dispatch) == [[]] * num


def evaluate_dispatched_map_style() -> list[Any]:
    world_size = PartialState().num_processes
    wrong: list[Any] = []
    for size, rows, split, even in product((0, 1, 2, 5, 8, 13), (1, 3), (False, True), (False, True)):
        loader = DataLoader(list(range(size)), batch_size=rows * world_size if split else rows)
        prepared = prepare_data_loader(loader, split_batches=split, even_batches=even, dispatch_batches=True)
        seen = gathered(prepared)
        expected = list(range(size)) if even else list(range(min(size, len(prepared) * rows * world_size)))
        if seen != expected or len(prepared) < 0:
            wrong.append((size, rows, split, even, seen))
    return wrong


@pytest.mark.parametrize("num", [2, 3])
def test_dispatched_map_style_evaluation_is_exact(world: Callable[[int], Any], num: int) -> None:
    assert world(num).run(evaluate_dispatched_map_style) == [[]] * num


def ragged(rows: list[int]) -> dict[str, Any]:
    return {"images": [torch.zeros(row % 3 + 1, 2) for row in rows], "ids": torch.tensor(rows)}


def packed(rows: list[int]) -> dict[str, Any]:
    return {"tokens": torch.zeros(1, 4 * len(rows)), "ids": torch.tensor(rows)}


def with_a_table(rows: list[int]) -> dict[str, Any]:
    return {"table": torch.zeros(5, 2), "ids": torch.tensor(rows)}


def doubled(rows: list[int]) -> dict[str, Any]:
    return {"ids": torch.tensor([row for row in rows for _ in range(2)])}


def detected(rows: list[int]) -> dict[str, Any]:
    return {"images": [torch.zeros(2, 4, 4) for _ in rows], "ids": [str(row) for row in rows]}


def evaluate_batches_whose_first_tensor_has_other_rows() -> list[Any]:
    wrong: list[Any] = []
    kinds = (ragged, packed, with_a_table, doubled, detected)
    for collate, size, even in product(kinds, (0, 1, 7, 13, 18), (True, False)):
        for dataset in (Numbers(size), list(range(size))):
            loader = DataLoader(dataset, batch_size=3, collate_fn=collate)
            prepared = prepare_data_loader(loader, dispatch_batches=True, even_batches=even)
            seen, num_steps = list[int](), 0
            for batch in prepared:
                ids = gather_for_metrics(batch["ids"], use_gather_object=isinstance(batch["ids"], list))
                seen, num_steps = (
                    seen + (ids[::2].tolist() if collate is doubled else list(map(int, ids))),
                    num_steps + 1,
                )
            expected = size if even else min(size, num_steps * 3 * PartialState().num_processes)
            if seen != list(range(expected)):
                wrong.append((collate.__name__, size, even, seen))
    return wrong


@pytest.mark.parametrize("num", [1, 2, 3])
def test_samples_come_once_where_the_first_tensor_of_a_batch_has_other_rows(
    world: Callable[[int], Any], num: int
) -> None:
    assert world(num).run(evaluate_batches_whose_first_tensor_has_other_rows) == [[]] * num


def evaluate_batches_of_the_data_set() -> list[int]:
    prepared = prepare_data_loader(DataLoader(Chunks(5), batch_size=None))
    return [row for batch in prepared for row in gather_for_metrics(batch).tolist()]


def test_batches_that_the_data_set_makes_are_removed_in_full(world: Callable[[int], Any]) -> None:
    assert world(2).run(evaluate_batches_of_the_data_set) == [list(range(10))] * 2


class Ragged(BatchSampler):
    """Batches of different sizes, without a `batch_size`."""

    def __init__(self) -> None:
        pass

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1, 2], [3], [4, 5], [6, 7, 8, 9], [10]])

    def __len__(self) -> int:
        return 5


def evaluate_ragged_batches() -> list[int]:
    loader = DataLoader(list(range(11)), batch_sampler=Ragged())
    return gathered(prepare_data_loader(loader, even_batches=False))


def test_batches_of_different_sizes_are_gathered_as_they_are(world: Callable[[int], Any]) -> None:
    assert world(2).run(evaluate_ragged_batches) == [list(range(11)), list(range(10))]


def evaluate_ragged_batches_made_even() -> tuple[int, list[int], list[int]]:
    loader = prepare_data_loader(DataLoader(list(range(11)), batch_sampler=Ragged()))
    rest = [row for batch in skip_first_batches(loader, 2) for row in batch.tolist()]
    return len(list(loader)), rest, gathered(loader)


def test_batches_of_different_sizes_are_made_even_with_the_first_ones(world: Callable[[int], Any]) -> None:
    first, second = world(2).run(evaluate_ragged_batches_made_even)
    assert first == (3, [10], list(range(11)))
    assert second == (3, [0, 1, 2], list(range(11)))


def leave_and_nest() -> list[list[int]]:
    train = prepare_data_loader(DataLoader(list(range(7)), batch_size=2))
    evaluation = prepare_data_loader(DataLoader(list(range(100, 105)), batch_size=2))
    for _ in evaluation:
        break
    results = [gathered(evaluation)]
    outer: list[int] = []
    for number, batch in enumerate(train):
        if number == 1:
            results.append(gathered(evaluation))
            for _ in evaluation:
                break
        outer += gather_for_metrics(batch).tolist()
    return [*results, outer, gathered(train)]


def test_loops_left_early_and_loops_in_loops_do_not_disturb_each_other(world: Callable[[int], Any]) -> None:
    small, large = list(range(100, 105)), list(range(7))
    assert world(2).run(leave_and_nest) == [[small, small, large, large]] * 2


def gather_what_has_no_rows() -> tuple[list[list[float]], list[int], list[str]]:
    loader = prepare_data_loader(DataLoader(list(range(9)), batch_size=2))
    means, samples = [], []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in loader:
            gathered = gather_for_metrics({"mean": batch.float().mean(), "samples": batch})
            means.append(gathered["mean"].tolist())
            samples += gathered["samples"].tolist()
    return means, samples, [str(warning.message) for warning in caught]


def test_a_mean_comes_from_all_ranks_next_to_samples_that_come_once(world: Callable[[int], Any]) -> None:
    for means, samples, messages in world(2).run(gather_what_has_no_rows):
        assert means == [[0.5, 2.5], [4.5, 6.5], [4.0, 1.5]]  # the last step is filled up with 0, and 1 and 2
        assert samples == list(range(9))
        assert "A tensor of shape () has no rows, but this rank's batch has 2" in messages[0]


def gather_a_mean_of_full_steps() -> list[float]:
    loader = prepare_data_loader(DataLoader(list(range(11)), batch_size=2, drop_last=True))
    return [value for batch in loader for value in gather_for_metrics(batch.float().mean()).tolist()]


def test_a_mean_is_gathered_where_no_step_is_filled_up(world: Callable[[int], Any]) -> None:
    assert world(2).run(gather_a_mean_of_full_steps) == [[0.5, 2.5, 4.5, 6.5]] * 2


def gather_tensors_as_objects() -> list[int]:
    loader = prepare_data_loader(DataLoader(list(range(5)), batch_size=2))
    return [int(row) for batch in loader for row in gather_for_metrics(batch, use_gather_object=True)]


@pytest.mark.parametrize("num_processes", [1, 2])
def test_rows_of_tensors_that_are_gathered_as_objects_come_once(
    world: Callable[[int], Any], num_processes: int
) -> None:
    assert world(num_processes).run(gather_tensors_as_objects) == [[0, 1, 2, 3, 4]] * num_processes


def one_loss_for_each_row_of_full_batches() -> int:
    loader = prepare_data_loader(DataLoader(list(range(7)), batch_size=2))
    return sum(len(gather_for_metrics(torch.ones(2), use_gather_object=True)) for _ in loader)


def test_what_has_the_rows_of_a_full_batch_is_reduced_as_objects_too(world: Callable[[int], Any]) -> None:
    for num_processes in 1, 2:
        assert world(num_processes).run(one_loss_for_each_row_of_full_batches) == [7] * num_processes


def gather_objects() -> tuple[list[Any], list[str], list[str]]:
    rank = PartialState().process_index
    loader = prepare_data_loader(DataLoader(list(range(5)), batch_size=2))
    totals: list[Any] = []
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in loader:
            totals += gather_for_metrics({"rank": rank}, use_gather_object=True)
            texts += gather_for_metrics([str(number) for number in batch.tolist()])
    return totals, texts, [str(warning.message) for warning in caught][:1]


def test_objects_without_items_come_from_all_ranks_and_texts_once(world: Callable[[int], Any]) -> None:
    for totals, texts, messages in world(2).run(gather_objects):
        assert totals == [{"rank": 0}, {"rank": 1}] * 2
        assert texts == ["0", "1", "2", "3", "4"]
        assert "object of type `dict` has no rows" in messages[0]


class SelfSharding(Numbers):
    num_shards = 4

    def shard(self, num_shards: int, index: int) -> SelfSharding:
        part = SelfSharding(self.size)
        part.__dict__.update(num=num_shards, index=index)
        return part

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.__dict__.get("index", 0), self.size, self.__dict__.get("num", 1)))


def evaluate_self_sharding() -> tuple[list[int], list[str]]:
    loader = prepare_data_loader(DataLoader(SelfSharding(10), batch_size=2), dispatch_batches=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        samples = [number for batch in loader for number in gather_for_metrics(batch).tolist()]
    return samples, [str(warning.message) for warning in caught]


def test_at_an_end_that_is_unknown_nothing_is_removed_with_a_warning(world: Callable[[int], Any]) -> None:
    told: list[str] = []
    for samples, messages in world(2).run(evaluate_self_sharding):
        assert sorted(set(samples)) == list(range(10))
        told += messages
    assert any("The end of the active data loader's data set is unknown" in message for message in told)


def gather_outside() -> tuple[list[int], int]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = gather_for_metrics(torch.tensor([PartialState().process_index]))
    return list(result.tolist()), sum("outside of a loop" in str(warning.message) for warning in caught)


def test_outside_of_loops_it_is_gather_with_a_warning(world: Callable[[int], Any]) -> None:
    assert world(2).run(gather_outside) == [([0, 1], 1), ([0, 1], 0)]


def evaluate_with_foreign_ranks() -> None:
    rank = PartialState().process_index
    loader = prepare_data_loader(
        DataLoader(list(range(8)), batch_size=2), num_processes=4, process_index=rank
    )
    for batch in loader:
        gather_for_metrics(batch)


def test_a_loader_prepared_for_other_processes_is_refused(world: Callable[[int], Any]) -> None:
    with pytest.raises(StateError, match="prepared for 4 processes, but 2 are running"):
        world(2).run(evaluate_with_foreign_ranks)


ALONE = {
    "map-style": {},
    "stream": {"dispatch_batches": False},
    "dispatched": {"dispatch_batches": True},
    "split": {"split_batches": True},
}


@pytest.mark.parametrize("size", [5, 6, 8])
@pytest.mark.parametrize("options", ALONE.values(), ids=ALONE)
@pytest.mark.parametrize("kind", [Numbers, SizedNumbers, range])
def test_one_process_counts_a_repeated_loss_once_for_each_sample(
    fresh_state: None, kind: Any, options: dict[str, Any], size: int
) -> None:
    loader = prepare_data_loader(DataLoader(kind(size), batch_size=4), **options)
    losses, texts, nested = [], [], []
    for batch in loader:
        loss = batch[0].double()
        losses += gather_for_metrics(loss.repeat(4)).tolist()
        texts += gather_for_metrics([str(int(loss))] * 4, use_gather_object=True)
        nested += gather_for_metrics({"a": [batch, (loss.repeat(4),)]})["a"][1][0].tolist()
    assert losses == nested == [0.0] * 4 + [4.0] * (size - 4)
    assert texts == ["0"] * 4 + ["4"] * (size - 4)


def repeat_losses(size: int, options: dict[str, Any]) -> tuple[list[float], list[str], list[str]]:
    loader = prepare_data_loader(DataLoader(range(size), batch_size=4), **options)
    losses, texts = [], []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in loader:
            losses += gather_for_metrics(batch[0].double().repeat(4)).tolist()
            texts += gather_for_metrics([str(int(batch[0]))] * 4)
    return losses, texts, [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("size", "options", "expected"),
    [
        (17, {}, [0] * 4 + [4] * 4 + [8] * 4 + [12] * 4 + [16]),
        (19, {"dispatch_batches": True}, [0] * 4 + [4] * 4 + [8] * 4 + [12] * 3 + [15] * 3 + [18]),
        (23, {"even_batches": False}, [0] * 4 + [4] * 4 + [8] * 4 + [12] * 4 + [16] * 4 + [20] * 3),
    ],
    ids=["map-style", "dispatched", "uneven"],
)
def test_three_processes_count_a_repeated_loss_once_for_each_sample(
    world: Callable[[int], Any], size: int, options: dict[str, Any], expected: list[int]
) -> None:
    for losses, texts, messages in world(3).run(repeat_losses, size, options):
        assert losses == expected
        assert texts == [str(loss) for loss in expected]
        assert messages == []


def test_one_process_keeps_what_has_other_numbers_of_rows(fresh_state: None) -> None:
    loader = prepare_data_loader(DataLoader(range(5), batch_size=2))
    results = [gather_for_metrics((batch.repeat(3), batch.sum(), batch.new_zeros(0))) for batch in loader]
    assert [tuple(one.shape) for one in results[-1]] == [(3,), (1,), (0,)]


def test_one_process_gets_back_what_it_gave(fresh_state: None) -> None:
    loader = prepare_data_loader(DataLoader(list(range(5)), batch_size=2))
    assert [row for batch in loader for row in gather_for_metrics(batch).tolist()] == list(range(5))
    assert gather_for_metrics([1, 2], use_gather_object=True) == [1, 2]


def left_early_where_only_the_first_rank_has_a_batch() -> list[int]:
    given = DataLoader(range(9), batch_size=3, shuffle=True)
    loader = prepare_data_loader(given, even_batches=False, use_seedable_sampler=True)
    for step, _ in enumerate(loader):
        if step == 1:
            break
    return gathered(loader)


def test_a_rank_that_has_continued_to_the_next_epoch_comes_back_for_the_one_that_the_others_left_early(world):
    seen, part = world(2).run(left_early_where_only_the_first_rank_has_a_batch)
    assert sorted(seen) == list(range(9))
    assert seen[:6] == part


def evaluate_loaders_of_their_class() -> list[list[int]]:
    rank = PartialState().process_index
    loader = DataLoaderShard([10 * rank + number for number in range(3)], batch_size=2)
    return [gather_for_metrics(batch).tolist() for batch in loader]


@pytest.mark.parametrize("num", [1, 2, 3])
def test_a_loader_built_by_its_class_gives_the_rows_of_all_ranks(
    world: Callable[[int], Any], num: int
) -> None:
    first = [10 * rank + number for rank in range(num) for number in range(2)]
    assert (
        world(num).run(evaluate_loaders_of_their_class)
        == [[first, [10 * rank + 2 for rank in range(num)]]] * num
    )
