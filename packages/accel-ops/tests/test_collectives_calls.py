"""What crosses between the ranks: an exchange of digests, then the tensors of each dtype in one collective."""

import torch

from accel_ops import broadcast, broadcast_object_list, gather, gather_object, reduce
from accel_state.errors import DistributedOperationException


def kinds(ranks) -> list[str]:
    return [kind for kind, _ in ranks.transports[0].calls]


def test_a_checked_operation_is_one_exchange_and_one_collective(make_ranks):
    def body(rank: int) -> list[torch.Tensor]:
        data = torch.full((1000,), rank + 1, dtype=torch.uint8)
        return [gather(data), reduce(data, "max"), broadcast(data.clone(), 1)]

    ranks = make_ranks(2)
    for gathered, largest, received in ranks.run(body):
        assert gathered.tolist() == [1] * 1000 + [2] * 1000
        assert set(largest.tolist()) == {2}
        assert set(received.tolist()) == {2}
    assert kinds(ranks) == [
        "all_gather",
        "all_gather",
        "all_gather",
        "all_reduce max",
        "all_gather",
        "broadcast from 1",
    ]


def test_the_exchange_has_one_size_whatever_is_sent(make_ranks):
    ranks = make_ranks(2)
    ranks.run(
        lambda rank: [gather(torch.ones(1)), reduce(torch.ones(100_000)), gather_object(["x" * 3000 * rank])]
    )
    assert len({size for _, size in ranks.transports[0].calls[::2]}) == 1


def test_dtypes_of_every_width_can_be_gathered_together(make_ranks):
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
    assert kinds(ranks) == ["all_gather"] * (1 + len(dtypes))


def test_objects_of_any_size_arrive_and_small_ones_in_one_call(make_ranks):
    sizes = [3_000, 50_000, 0]
    for gathered in make_ranks(3).run(lambda rank: gather_object([b"x" * sizes[rank]])):
        assert [len(item) for item in gathered] == sizes
    for size, num_calls in [(3_000, 1), (50_000, 2)]:
        ranks = make_ranks(2)
        received = ranks.run(
            lambda rank, size=size: broadcast_object_list([b"x" * size if rank else None], 1)
        )
        assert [len(item) for (item,) in received] == [size] * 2
        assert len(kinds(ranks)) == num_calls


def test_a_rank_with_little_data_and_one_with_much_differ_with_a_message(make_ranks):
    ranks = make_ranks(2)
    for outcome in ranks.outcomes(lambda rank: gather(torch.zeros(1 + rank * 100_000))):
        assert isinstance(outcome, DistributedOperationException)
        assert "Process 1: [100001]" in str(outcome)
