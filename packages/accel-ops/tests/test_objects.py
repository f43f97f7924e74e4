from __future__ import annotations

from typing import Any

import pytest
import torch

from accel_ops import DistributedOperationException, broadcast_object_list, gather_object
from accel_state.errors import ConfigError


@pytest.mark.parametrize("size", [1, 300_000], ids=["small", "large"])
def test_lists_of_all_ranks_are_joined_in_rank_order(ranks, size):
    for got in ranks(3).run(lambda rank: gather_object([rank, "x" * size * rank])):
        assert got == [0, "", 1, "x" * size, 2, "xx" * size]


def test_what_is_no_list_counts_as_one_item(ranks):
    for num in (1, 2):
        results = ranks(num).run(
            lambda rank: (gather_object("text"), gather_object({"rank": rank}), gather_object((rank,)))
        )
        assert results[0] == (["text"] * num, [{"rank": rank} for rank in range(num)], list(range(num)))


def test_objects_may_differ_in_type_and_ranks_may_give_nothing(ranks):
    assert ranks(3).run(lambda rank: gather_object([[], [{1, 2}], [torch.tensor(5), None]][rank]))[0] == [
        {1, 2},
        torch.tensor(5),
        None,
    ]


def test_rows_of_tensors_are_items_and_one_process_gets_its_tensor_back(ranks):
    joined = ranks(2).run(lambda rank: gather_object(torch.tensor([[rank], [rank + 10]])))
    assert [torch.stack(rows).flatten().tolist() for rows in joined] == [[0, 10, 1, 11]] * 2
    assert ranks(2).run(lambda rank: gather_object(torch.tensor(rank)))[0] == [
        torch.tensor(0),
        torch.tensor(1),
    ]
    alone = torch.tensor([1, 2])
    assert gather_object(alone) is alone


def test_one_process_gets_its_list_back():
    items = [1, 2]
    assert gather_object(items) is items


@pytest.mark.parametrize("size", [1, 300_000], ids=["small", "large"])
def test_a_list_is_replaced_in_place_by_that_of_the_source(ranks, size):
    def body(rank: int) -> tuple[Any, bool]:
        items = [rank, "x" * size if rank == 1 else None]
        returned = broadcast_object_list(items, from_process=1)
        return items, returned is items

    for items, is_same in ranks(3).run(body):
        assert items == [1, "x" * size]
        assert is_same


def test_the_lists_must_have_one_length(make_ranks):
    for error in make_ranks(2).outcomes(lambda rank: broadcast_object_list([None] * (rank + 1))):
        assert isinstance(error, DistributedOperationException)
        assert "Process 0: ['0', '1']\n  - Process 1: ['0', '2']" in str(error)
    with pytest.raises(ConfigError, match="`from_process` must lie between 0 and 0"):
        broadcast_object_list([1], from_process=1)


class Stubborn:
    def __reduce__(self) -> Any:
        raise TypeError("this stays here")


@pytest.mark.parametrize(
    ("operation", "name"),
    [(gather_object, "gather_object"), (broadcast_object_list, "broadcast_object_list")],
)
def test_an_object_that_cannot_be_pickled_is_an_error_on_every_rank(make_ranks, operation, name):
    ranks = make_ranks(3)
    errors = ranks.outcomes(lambda rank: operation([Stubborn() if rank == 0 else rank]))
    assert isinstance(errors[0], TypeError)
    assert "this stays here" in str(errors[0])
    for error in errors[1:]:
        assert isinstance(error, DistributedOperationException)
        assert f"Process 0 could not pickle its object for `{name}`. See its error." in str(error)


def pickle_what_cannot_be() -> list[Any]:
    from accel_state.partial_state import PartialState

    rank = PartialState().process_index
    with pytest.raises((TypeError, DistributedOperationException)):
        gather_object([Stubborn() if rank == 1 else rank])
    return gather_object([rank])


def test_the_next_operation_works_after_an_object_that_cannot_be_pickled(world):
    assert world(2).run(pickle_what_cannot_be) == [[0, 1]] * 2


def exchange_objects() -> Any:
    from accel_state.partial_state import PartialState

    rank = PartialState().process_index
    gathered = [gather_object([rank, "y" * 300_000 * rank]) for _ in range(2)]
    items = [rank, "z" * 300_000]
    return [len(item) if isinstance(item, str) else item for item in gathered[1]], broadcast_object_list(
        items, 1
    )[0]


def test_real_processes_exchange_objects(world):
    assert world(2).run(exchange_objects) == [([0, 0, 1, 300_000], 1)] * 2
