from __future__ import annotations

from typing import Any

import pytest
import torch

from accel_ops import reduce
from accel_state.errors import ConfigError


def values(rank: int, dtype: torch.dtype) -> torch.Tensor:
    # Sums and means of these are exact even with the two digits of float8.
    return (torch.tensor([[0, 1, 2], [4, 1, 2]]) * (rank + 1)).to(dtype)


@pytest.mark.parametrize("size", [1, 50_000], ids=["small", "large"])
@pytest.mark.parametrize(
    "dtype",
    [
        torch.int8,
        torch.uint8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
        torch.float8_e5m2,
    ],
    ids=str,
)
def test_sums_and_means_of_every_dtype(ranks, dtype, size):
    def data(rank: int) -> torch.Tensor:
        return values(rank, dtype).repeat(size, 1)

    wanted = data(0).to(torch.complex128) + data(1).to(torch.complex128)
    for total, mean in ranks(2).run(lambda rank: (reduce(data(rank), "sum"), reduce([data(rank)])[0])):
        assert total.dtype == dtype
        assert torch.equal(total.to(torch.complex128), wanted)
        is_exact = dtype.is_floating_point or dtype.is_complex
        assert mean.dtype == (dtype if is_exact else torch.float32)
        assert torch.equal(mean.to(torch.complex128), wanted / 2)


def test_booleans_are_counted(ranks):
    def body(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        flags = torch.tensor([True, rank == 0, False])
        return reduce(flags, "sum"), reduce(flags, "mean")

    for count, share in ranks(2).run(body):
        assert count.dtype == torch.int64
        assert count.tolist() == [2, 1, 0]
        assert share.tolist() == [1, 0.5, 0]


def test_a_mean_does_not_overflow_on_its_way(ranks):
    for got in ranks(2).run(
        lambda rank: reduce([torch.full((2,), 60000.0).half(), torch.tensor([100], dtype=torch.int8)])
    ):
        assert got[0].tolist() == [60000, 60000]
        assert got[1].tolist() == [100]


def test_small_integers_wrap_in_a_sum_as_they_do_in_torch(ranks):
    assert ranks(2).run(lambda rank: reduce(torch.tensor([100], dtype=torch.int8), "sum"))[0].tolist() == [
        -56
    ]


@pytest.mark.parametrize("num", [1, 2])
def test_scale_multiplies_the_result(ranks, num):
    for got in ranks(num).run(
        lambda rank: reduce([torch.ones(2), torch.ones(1, dtype=torch.int64)], "sum", scale=0.5)
    ):
        assert got[0].tolist() == [num / 2] * 2
        assert got[1].tolist() == [num / 2]


def test_none_returns_the_input_and_talks_to_nobody(make_ranks):
    ranks = make_ranks(2)
    data = {"x": torch.ones(1)}
    assert all(got is data for got in ranks.run(lambda rank: reduce(data, "none")))
    assert ranks.transports[0].calls == []


@pytest.mark.parametrize("size", [3, 100_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex64], ids=str)
def test_the_input_stays_as_it_is(ranks, size, dtype):
    def body(rank: int) -> torch.Tensor:
        data = torch.ones(size, dtype=dtype)
        reduce(data, "sum")
        return data

    assert all(torch.equal(data, torch.ones(size, dtype=dtype)) for data in ranks(2).run(body))


def test_structures_cross_in_one_call(make_ranks):
    ranks = make_ranks(2)
    data = {f"k{i}": torch.ones(3, i) for i in range(24)} | {"i": torch.ones(2, dtype=torch.int64)}

    def body(rank: int) -> Any:
        reduce(data)
        ranks.transports[rank].calls.clear()
        return reduce(data, "sum")

    assert ranks.run(body)[1]["k5"].tolist() == [[2] * 5] * 3
    assert len(ranks.transports[0].calls) == 1


def test_unknown_reductions_are_refused():
    with pytest.raises(ConfigError, match="`reduction` must be one of mean, sum, none, got `max`"):
        reduce(torch.ones(1), "max")


def test_one_process_follows_the_same_rules_for_dtypes():
    rows = torch.ones(2)
    assert reduce(rows) is rows
    assert reduce(torch.tensor([True])).dtype == torch.float32
    assert reduce(torch.tensor([True]), "sum").tolist() == [1]
    with pytest.raises(TypeError, match="passed to `reduce`"):
        reduce([1.0])


def reduce_many() -> list[Any]:
    from accel_state.partial_state import PartialState

    rank = PartialState().process_index
    data = {
        "half": torch.full((4,), 60000.0 - rank).half(),
        "int": torch.arange(3) + rank,
        "int16": torch.arange(3, dtype=torch.int16) + rank,
        "flag": torch.tensor(rank == 0),
        "complex": torch.tensor([1j * rank]),
        "large": torch.full((100_000,), float(rank)),
        "large int16": torch.full((200_000,), rank, dtype=torch.int16),
    }
    results = [reduce(data), reduce(data)]
    return [
        {key: value[..., :2] if value.ndim else value for key, value in result.items()} for result in results
    ]


def test_real_processes_agree_bit_for_bit(world):
    outcomes = world(3).run(reduce_many)
    for results in outcomes:
        for got in results:
            assert got["half"].tolist() == [60000, 60000]
            assert got["int"].tolist() == [1, 2]
            assert got["int16"].tolist() == [1, 2]
            assert got["flag"].item() == pytest.approx(1 / 3)
            assert got["complex"].tolist() == [1j]
            assert got["large"].tolist() == [1, 1]
            assert got["large int16"].tolist() == [1, 1]
    assert str(outcomes[0]) == str(outcomes[1]) == str(outcomes[2])
