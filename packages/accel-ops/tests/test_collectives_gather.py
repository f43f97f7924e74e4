from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch

from accel_ops import DistributedOperationException, broadcast, gather, reduce

Pair = namedtuple("Pair", "left right")
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
]


def rows_of(rank: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(0, 5, shape, generator=generator).to(dtype)


def everything(rank: int) -> dict[str, Any]:
    """One tensor of every dtype, and every kind of layout that needs care."""
    data: dict[str, Any] = {str(dtype): rows_of(rank, dtype, 3, 2) for dtype in DTYPES}
    data["scalar"] = [torch.tensor(rank), torch.tensor(rank > 0)]
    data["empty"] = Pair(torch.empty(0, 3), torch.empty(2, 0, dtype=torch.int16))
    data["strided"] = OrderedDict(
        t=rows_of(rank, torch.float32, 4, 6).t(), every=torch.arange(12)[rank::3][:2]
    )
    data["conjugate"] = rows_of(rank, torch.complex64, 3).mul(1j).conj()
    data["large"] = [rows_of(rank, dtype, 270_000 // dtype.itemsize) for dtype in DTYPES]
    data["large strided"] = rows_of(rank, torch.float64, 300, 200).t()
    data["expanded"] = torch.tensor([float(rank)]).expand(5)
    return data


def expected_gather(per_rank: list[Any]) -> Any:
    first = per_rank[0]
    if isinstance(first, torch.Tensor):
        return torch.cat([torch.atleast_1d(tensor) for tensor in per_rank])
    if isinstance(first, dict):
        return {key: expected_gather([data[key] for data in per_rank]) for key in first}
    return [expected_gather([data[i] for data in per_rank]) for i in range(len(first))]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_conj().contiguous().view(-1).view(torch.uint8)


def assert_same(got: Any, wanted: Any) -> None:
    if isinstance(wanted, torch.Tensor):
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        # Bytes, since float8 knows no comparison.
        assert torch.equal(bytes_of(got), bytes_of(wanted))
        return
    assert len(got) == len(wanted)
    for key in wanted if isinstance(wanted, dict) else range(len(wanted)):
        assert_same(got[key], wanted[key])


@pytest.mark.parametrize("num", [1, 2, 3])
def test_every_rank_receives_the_rows_of_all(ranks, num):
    wanted = expected_gather([everything(rank) for rank in range(num)])
    for got in ranks(num).run(lambda rank: gather(everything(rank))):
        assert_same(got, wanted)


def test_containers_keep_their_type(ranks):
    got = ranks(2).run(lambda rank: gather(everything(rank)))[0]
    assert type(got["empty"]) is Pair
    assert type(got["strided"]) is OrderedDict


def test_a_scalar_becomes_one_dimension_of_world_size(ranks):
    for num in (1, 3):
        assert all(
            got.tolist() == list(range(num))
            for got in ranks(num).run(lambda rank: gather(torch.tensor(rank)))
        )


def test_structures_cross_in_one_call_per_dtype_and_the_results_are_independent(make_ranks):
    ranks = make_ranks(2, checked=False)
    data = [torch.ones(4), torch.zeros(4), torch.ones(3, dtype=torch.int8)]

    def body(rank: int) -> list[torch.Tensor]:
        gathered = gather(data)
        gathered[0].fill_(7)
        return gathered

    for got in ranks.run(body):
        assert got[1].tolist() == [0] * 8
    assert [size for _, size in ranks.transports[0].calls] == [32, 3]
    assert data[0].tolist() == [1] * 4


@pytest.mark.parametrize("num_elements", [1, 300, 60_000, 300_000])
def test_keeping_one_result_does_not_keep_the_others(make_ranks, num_elements):
    data = [torch.ones(num_elements) for _ in range(10)]

    def body(rank: int) -> list[torch.Tensor]:
        alone = data[0].clone()
        together = [*gather(data), *reduce(data, "sum"), *broadcast(data)]
        return [
            *together,
            gather(alone),
            reduce(alone, "sum"),
            broadcast(alone),
        ]

    for results in make_ranks(2).run(body):
        for result in results:
            assert result.untyped_storage().nbytes() == result.nbytes


@pytest.mark.parametrize("num_elements", [2, 300_000])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_results_can_be_overwritten_with_what_needs_gradients(ranks, mode, num_elements):
    def body(rank: int) -> float:
        weight = torch.full((num_elements,), 3.0, requires_grad=True)
        data = [torch.ones(num_elements), torch.ones(num_elements)]
        with mode():
            results = [*gather(data), *reduce(data, "sum"), *broadcast(data, 0)]
        for result in results:
            result[:num_elements] = weight
            result.sum().backward()
        assert weight.grad is not None
        return weight.grad[0].item()

    assert ranks(2).run(body) == [6, 6]


def test_large_tensors_are_sent_separately(make_ranks):
    ranks = make_ranks(2)
    ranks.run(lambda rank: gather([torch.ones(100_000), torch.ones(90_000)]))
    assert [size for _, size in ranks.transports[0].calls[1:]] == [400_000, 360_000]


def test_results_carry_no_history(ranks):
    weight = torch.ones(2, requires_grad=True)
    assert not any(ranks(2).run(lambda rank: gather({"x": weight * 2})["x"].requires_grad))


def test_parameters_and_empty_structures_pass(ranks):
    got = ranks(2).run(lambda rank: gather([torch.nn.Parameter(torch.ones(1)), {}, []]))[1]
    assert type(got[0]) is torch.Tensor
    assert got[1:] == [{}, []]
    assert ranks(2).run(lambda rank: gather({})) == [{}, {}]


@pytest.mark.parametrize("num", [1, 2])
def test_what_is_no_dense_tensor_is_refused_on_one_rank_as_on_many(make_ranks, num):
    with pytest.raises(TypeError, match=r"Unsupported types \(<class 'str'>\) passed to `gather`"):
        make_ranks(num).run(lambda rank: gather(["text"]))
    with pytest.raises(TypeError, match=r"`gather` takes dense tensors, got a sparse_coo one"):
        make_ranks(num).run(lambda rank: gather(torch.eye(2).to_sparse()))
    with pytest.raises(TypeError, match=r"got a nested one"):
        make_ranks(num).run(lambda rank: gather(torch.nested.nested_tensor([torch.ones(2), torch.ones(1)])))


def test_one_process_gets_its_own_tensors_back():
    rows = torch.ones(2)
    assert gather({"x": rows})["x"] is rows


def gather_everything(num: int) -> bool:
    from accel_state.partial_state import PartialState

    data = everything(PartialState().process_index)
    for _ in range(2):
        # Compared here: tensors of some dtypes cannot be pickled back to the test.
        assert_same(gather(data), expected_gather([everything(rank) for rank in range(num)]))
    return True


@pytest.mark.parametrize("num", [2, 3])
def test_real_processes_receive_the_same(world, num):
    assert world(num).run(gather_everything, num) == [True] * num


def ragged_then_fine() -> list[Any]:
    from accel_state.partial_state import PartialState

    rank = PartialState().process_index
    try:
        gather({"x": torch.ones(2 + 50_000 * rank)})
    except DistributedOperationException as error:
        return [str(error), gather(torch.tensor(rank)).tolist()]
    return []


def test_a_ragged_gather_raises_on_every_real_process_and_the_next_one_works(world):
    for message, after in world(2).run(ragged_then_fine):
        assert "Input shapes:\n  - Process 0: {'x': [2]}\n  - Process 1: {'x': [50002]}" in message
        assert after == [0, 1]
