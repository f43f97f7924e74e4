from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accel_ops import CannotPadNestedTensorWarning, gather, pad_across_processes
from accel_state.errors import ConfigError


def test_every_tensor_gets_the_size_of_its_largest_rank(ranks):
    def body(rank: int) -> Any:
        data = {
            "a": torch.ones(rank + 1, 2),
            "b": [torch.ones(3 - rank, dtype=torch.int16)],
            "c": torch.tensor(rank),
        }
        return pad_across_processes(data, pad_index=7)

    first, second = ranks(2).run(body)
    assert first["a"].tolist() == [[1, 1], [7, 7]]
    assert second["a"].tolist() == [[1, 1], [1, 1]]
    assert second["b"][0].tolist() == [1, 1, 7]
    assert second["b"][0].dtype == torch.int16
    assert (first["c"].item(), second["c"].item()) == (0, 1)


@pytest.mark.parametrize("dim", [1, -2])
def test_dim_and_side_can_be_chosen(ranks, dim):
    def body(rank: int) -> Any:
        return pad_across_processes(torch.ones(2, rank + 1, 2), dim=dim, pad_index=-1, pad_first=True)

    padded = ranks(2).run(body)[0]
    assert padded.shape == (2, 2, 2)
    assert padded[:, 0].tolist() == [[-1, -1]] * 2
    assert padded[:, 1].tolist() == [[1, 1]] * 2


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.float16, torch.complex64, torch.float64], ids=str
)
def test_every_dtype_is_padded(ranks, dtype):
    padded = ranks(2).run(
        lambda rank: pad_across_processes(torch.ones(2 * rank, 2, dtype=dtype), pad_index=1)
    )
    assert torch.equal(padded[0], torch.ones(2, 2, dtype=dtype))


def test_what_has_no_such_dimension_is_returned_unchanged(ranks):
    def body(rank: int) -> bool:
        flat, scalar = torch.ones(rank + 1), torch.tensor(1)
        padded = pad_across_processes([flat, scalar], dim=1)
        return all(one is two for one, two in zip(padded, [flat, scalar], strict=True))

    assert all(ranks(2).run(body))


def test_all_sizes_cross_in_one_call_with_the_digest(make_ranks):
    ranks = make_ranks(3)
    ranks.run(lambda rank: pad_across_processes([torch.ones(rank + i) for i in range(24)]))
    assert [kind for kind, _ in ranks.transports[0].calls] == ["all_gather"]


@pytest.mark.parametrize("num", [1, 2])
@pytest.mark.parametrize(
    ("dtype", "pad_index"),
    [(torch.int64, 0.5), (torch.bool, -100), (torch.uint8, -1), (torch.int8, 128), (torch.int64, math.inf)],
)
def test_a_value_that_the_dtype_cannot_hold_is_refused(make_ranks, num, dtype, pad_index):
    with pytest.raises(
        ConfigError, match=f"`pad_index` is {pad_index}, which a tensor of {dtype} cannot hold"
    ):
        make_ranks(num).run(
            lambda rank: pad_across_processes(torch.ones(2, dtype=dtype), pad_index=pad_index)
        )


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=2, max_size=3), st.booleans())
def test_ragged_rows_can_be_gathered_after_padding(make_ranks, sizes, pad_first):
    def body(rank: int) -> list[torch.Tensor]:
        rows = [torch.full((size,), rank + 1) for size in sizes[rank]]
        return gather(pad_across_processes(rows, pad_first=pad_first))

    for got in make_ranks(len(sizes)).run(body):
        for position, tensor in enumerate(got):
            longest = max(own[position] for own in sizes)
            wanted = []
            for rank, own in enumerate(sizes):
                filling = [0] * (longest - own[position])
                values = [rank + 1] * own[position]
                wanted += filling + values if pad_first else values + filling
            assert tensor.tolist() == wanted


def test_padding_is_differentiable(ranks):
    def body(rank: int) -> torch.Tensor:
        weight = torch.ones(rank + 1, requires_grad=True)
        pad_across_processes({"x": weight * 2})["x"].sum().backward()
        assert weight.grad is not None
        return weight.grad

    assert [grad.tolist() for grad in ranks(2).run(body)] == [[2], [2, 2]]


@pytest.mark.parametrize("num", [1, 2])
def test_nested_tensors_are_left_unchanged_with_a_warning(make_ranks, num):
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(1)])
    with pytest.warns(
        CannotPadNestedTensorWarning, match="Cannot pad nested tensors without more information"
    ):
        results = make_ranks(num).run(lambda rank: pad_across_processes([nested, torch.ones(1 + rank)]))
    assert all(result[0] is nested for result in results)
    assert results[0][1].shape == (num,)


def test_what_is_no_tensor_is_refused():
    with pytest.raises(TypeError, match=r"passed to `pad_across_processes`"):
        pad_across_processes(["text"])


def pad_real() -> list[Any]:
    from accel_state.partial_state import PartialState

    rank = PartialState().process_index
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        padded = [pad_across_processes([torch.ones(rank + 1, 2), torch.ones(3 - rank)]) for _ in range(2)]
    return [[list(tensor.shape) for tensor in one] for one in padded]


def test_real_processes_pad_to_the_same_sizes(world):
    assert world(3).run(pad_real) == [[[[3, 2], [3]]] * 2] * 3


@pytest.mark.parametrize("sizes", [(2, 2), (1, 2)])
def test_results_have_separate_memory_on_every_rank(ranks, sizes):
    def body(rank: int) -> list[float]:
        data = torch.zeros(sizes[rank])
        pad_across_processes(data).fill_(9)
        return data.tolist()

    assert ranks(2).run(body) == [[0.0] * size for size in sizes]
