from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist

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
        is_kept = dtype.is_floating_point or dtype.is_complex
        of_integers = torch.float64 if dtype.itemsize >= 4 else torch.float32
        assert mean.dtype == (dtype if is_kept else of_integers)
        assert torch.equal(mean.to(torch.complex128), wanted / 2)


def test_booleans_are_counted(ranks):
    def body(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        flags = torch.tensor([True, rank == 0, False])
        return reduce(flags, "sum"), reduce(flags, "mean")

    for count, share in ranks(2).run(body):
        assert count.dtype == torch.int64
        assert count.tolist() == [2, 1, 0]
        assert share.tolist() == [1, 0.5, 0]


@pytest.mark.parametrize("size", [2, 200_000], ids=["small", "large"])
def test_a_mean_does_not_overflow_on_its_way(ranks, size):
    for got in ranks(2).run(
        lambda rank: reduce([torch.full((size,), 60000.0).half(), torch.tensor([100], dtype=torch.int8)])
    ):
        assert set(got[0].tolist()) == {60000}
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


def test_none_returns_the_input_without_a_collective(make_ranks):
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


def test_structures_cross_in_one_call_per_dtype_that_is_sent(make_ranks):
    ranks = make_ranks(2, checked=False)
    data = {f"k{i}": torch.ones(3, i) for i in range(24)} | {
        "half": torch.ones(2).half(),
        "brain": torch.ones(2).bfloat16(),
        "i": torch.ones(2, dtype=torch.int64),
    }
    totals = ranks.run(lambda rank: reduce(data, "sum"))[1]
    assert totals["k5"].tolist() == [[2] * 5] * 3
    assert (totals["half"].dtype, totals["brain"].dtype) == (torch.float16, torch.bfloat16)
    assert [size for _, size in ranks.transports[0].calls] == [4 * (3 * 276 + 4), 16]


@pytest.mark.parametrize(
    ("dtype", "reduction", "sent"),
    [
        (torch.int8, "sum", 1),
        (torch.bool, "sum", 1),
        (torch.bfloat16, "sum", 4),
        (torch.float16, "mean", 4),
        (torch.float16, "max", 2),
        (torch.int8, "mean", 4),
    ],
    ids=str,
)
def test_large_tensors_are_sent_in_as_few_bytes_as_the_result_allows(make_ranks, dtype, reduction, sent):
    ranks = make_ranks(2)
    size = 1 << 19
    results = ranks.run(lambda rank: reduce(torch.ones(size).to(dtype), reduction))
    assert set(results[0].tolist()) == {2 if reduction == "sum" else 1}
    assert ranks.transports[0].calls[1] == (
        f"all_reduce {'max' if reduction == 'max' else 'sum'}",
        sent * size,
    )


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.uint32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2),
    ],
    ids=str,
)
def test_maxima_and_minima_of_every_dtype(ranks, dtype):
    def body(rank: int) -> list[torch.Tensor]:
        data = torch.tensor([rank, 1 - rank, 1]).to(dtype)
        return [reduce(data, "max"), reduce(data, "min")]

    for highest, lowest in ranks(2).run(body):
        assert (highest.dtype, lowest.dtype) == (dtype, dtype)
        assert highest.to(torch.int64).tolist() == [1, 1, 1]
        assert lowest.to(torch.int64).tolist() == [0, 0, 1]


def nans_of_each_rank(size: int) -> list[torch.Tensor]:
    rank = dist.get_rank()
    data = torch.tensor([math.nan if rank == place else 1.0 for place in (0, 1, 2)]).repeat(size)
    return [
        reduce(data.to(dtype), how) for dtype in (torch.float32, torch.bfloat16) for how in ("max", "min")
    ]


@pytest.mark.parametrize("size", [1, 50_000], ids=["small", "large"])
def test_a_maximum_or_minimum_with_a_nan_is_nan_whichever_rank_has_it(world, size):
    for results in world(2).run(nans_of_each_rank, size):
        for found in results:
            assert found.isnan().tolist() == [True, True, False] * size


@pytest.mark.parametrize("dtype", [torch.complex64, torch.uint64], ids=str)
def test_what_has_no_order_is_refused(dtype):
    with pytest.raises(TypeError, match=f"`reduce` has no max of {dtype}"):
        reduce(torch.ones(1, dtype=dtype), "max")


@pytest.mark.parametrize("num", [1, 2])
def test_means_of_large_integers_are_exact(ranks, num):
    def body(rank: int) -> list[float]:
        counts = [torch.tensor(16_777_217), torch.tensor(2**63 + 2**62, dtype=torch.uint64)]
        return [mean.item() for mean in reduce(counts)]

    assert ranks(num).run(body)[0] == [16_777_217, 2**63 + 2**62]


@pytest.mark.parametrize("size", [1, 200_000], ids=["small", "large"])
def test_sums_in_half_precision_are_rounded_once_whatever_the_size(make_ranks, size):
    # Added in bfloat16, eight additions of 1 to 256 would change nothing.
    results = make_ranks(9).run(
        lambda rank: reduce(torch.full((size,), 256.0 if rank == 0 else 1.0).bfloat16(), "sum")
    )
    assert set(results[0].tolist()) == {264}


@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8])
def test_quantized_tensors_are_refused(dtype):
    rows = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, dtype)
    with pytest.raises(TypeError, match=r"takes dense tensors, got a quantized one.*dequantize"):
        reduce(rows)


def test_unknown_reductions_are_refused():
    with pytest.raises(
        ConfigError, match="`reduction` must be one of mean, sum, max, min, none, got `median`"
    ):
        reduce(torch.ones(1), "median")


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
