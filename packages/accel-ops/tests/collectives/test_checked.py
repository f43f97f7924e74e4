"""Small tensors travel with the comparison of the calls, larger ones after it; the results are the same."""

import pytest
import torch

from accel_ops.agreement.exchange import room_for_attached
from accel_ops.collectives.broadcasting import broadcast
from accel_ops.collectives.gathering import gather
from accel_ops.collectives.objects import broadcast_object_list, gather_object
from accel_ops.collectives.reduction import reduce
from accel_state.errors import DistributedOperationException


def kinds(ranks) -> list[str]:
    return [kind for kind, _ in ranks.transports[0].calls]


@pytest.fixture
def room(make_ranks) -> int:
    return room_for_attached(make_ranks(2).transports[0])


@pytest.mark.parametrize(("beyond", "num_calls"), [(0, 1), (1, 2)])
def test_what_fits_into_the_room_takes_one_call_and_one_byte_more_takes_two(
    make_ranks, room, beyond, num_calls
):
    def body(rank: int) -> list[torch.Tensor]:
        data = torch.full((room + beyond,), rank + 1, dtype=torch.uint8)
        return [gather(data), reduce(data, "max"), broadcast(data.clone(), 1)]

    ranks = make_ranks(2)
    for gathered, largest, received in ranks.run(body):
        assert gathered.tolist() == [1] * (room + beyond) + [2] * (room + beyond)
        assert set(largest.tolist()) == {2}
        assert set(received.tolist()) == {2}
    assert len(kinds(ranks)) == 3 * num_calls


def test_dtypes_of_every_width_lie_behind_each_other(make_ranks):
    dtypes = [
        torch.int8,
        torch.complex128,
        torch.bool,
        torch.float64,
        torch.bfloat16,
        torch.uint16,
        torch.float32,
    ]
    data = {str(dtype): torch.tensor([1, 0, 1]).to(dtype) for dtype in dtypes}
    data |= {"empty": torch.empty(0, 3), "no dimension": torch.tensor(5.0)}

    ranks = make_ranks(3)
    for results in ranks.run(lambda rank: gather(data)):
        assert {key: (value.dtype, value.tolist()) for key, value in results.items()} == {
            key: (value.dtype, value.reshape(-1).tolist() * 3 if value.numel() else [])
            for key, value in data.items()
        }
    assert kinds(ranks) == ["all_gather"]


def test_sums_are_formed_in_the_order_of_the_ranks(make_ranks):
    values = [1e8, 1.0, -1e8]
    totals = make_ranks(3).run(lambda rank: reduce(torch.tensor(values[rank]), "sum"))
    assert [total.item() for total in totals] == [((torch.tensor(1e8) + 1.0) - 1e8).item()] * 3


def test_objects_of_any_size_arrive(make_ranks, room):
    sizes = [room // 2, 3 * room, 0]
    for gathered in make_ranks(3).run(lambda rank: gather_object([b"x" * sizes[rank]])):
        assert [len(item) for item in gathered] == sizes
    for size, num_calls in [(room // 2, 1), (3 * room, 2)]:
        ranks = make_ranks(2)
        received = ranks.run(
            lambda rank, size=size: broadcast_object_list([b"x" * size if rank else None], 1)
        )
        assert [len(item) for (item,) in received] == [size] * 2
        assert len(kinds(ranks)) == num_calls


def test_a_rank_with_little_data_and_one_with_much_differ_with_a_message(make_ranks, room):
    ranks = make_ranks(2)
    for outcome in ranks.outcomes(lambda rank: gather(torch.zeros(1 + rank * room))):
        assert isinstance(outcome, DistributedOperationException)
        assert f"Process 1: [{1 + room}]" in str(outcome)


def test_many_ranks_attach_less(make_ranks):
    rooms = [room_for_attached(make_ranks(num).transports[0]) for num in (2, 64, 512)]
    assert rooms == [1 << 14, 1 << 14, 1 << 11]
