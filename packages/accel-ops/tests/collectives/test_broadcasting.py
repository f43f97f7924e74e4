from __future__ import annotations

from typing import Any

import pytest
import torch

from accel_ops import broadcast
from accel_state.errors import ConfigError

OTHERS = [torch.int16, torch.bool, torch.float8_e5m2, torch.complex64, torch.bfloat16]


def data_of(rank: int) -> dict[str, Any]:
    return {
        "float": torch.full((2, 2), float(rank)),
        "more": [torch.full((3,), float(rank)), torch.tensor(rank), torch.tensor(rank > 0), torch.empty(0)],
        "half": torch.full((4, 2), float(rank)).half().t(),
        "large": torch.full((80_000,), rank),
        "large others": [torch.full((300_000,), rank).to(dtype) for dtype in OTHERS],
    }


@pytest.mark.parametrize("source", [0, 1, 2])
def test_every_rank_receives_what_the_source_has(ranks, source):
    for got in ranks(3).run(
        lambda rank: [broadcast(data_of(rank), source), broadcast(data_of(rank), source)][1]
    ):
        wanted = data_of(source)
        assert torch.equal(got["float"], wanted["float"])
        assert all(
            torch.equal(one, two) and one.dtype == two.dtype
            for one, two in zip(got["more"], wanted["more"], strict=True)
        )
        assert torch.equal(got["half"], wanted["half"])
        assert torch.equal(got["large"], wanted["large"])
        for one, two in zip(got["large others"], wanted["large others"], strict=True):
            assert one.dtype == two.dtype
            assert torch.equal(one.view(torch.uint8), two.view(torch.uint8))


@pytest.mark.parametrize("size", [2, 100_000])
def test_the_inputs_stay_and_the_source_gets_its_own_back(ranks, size):
    def body(rank: int) -> tuple[bool, bool]:
        data = torch.full((size,), float(rank))
        received = broadcast([data])[0]
        return received is data, bool((data == rank).all())

    assert ranks(2).run(body) == [(True, True), (False, True)]


def test_results_are_independent_of_each_other(ranks):
    def body(rank: int) -> list[float]:
        first, second = broadcast([torch.ones(3), torch.zeros(3)], 0)
        if rank == 1:
            first.fill_(9)
        return second.tolist()

    assert ranks(2).run(body)[1] == [0, 0, 0]


@pytest.mark.parametrize("source", [-1, 2])
def test_there_must_be_such_a_rank(make_ranks, source):
    with pytest.raises(ConfigError, match=f"`from_process` must lie between 0 and 1, got {source}"):
        make_ranks(2).run(lambda rank: broadcast(torch.ones(1), source))


def test_one_process_gets_its_own_back_but_no_text():
    rows = [torch.ones(1)]
    assert broadcast(rows) is rows
    with pytest.raises(TypeError, match="passed to `broadcast`"):
        broadcast(["text"])


def broadcast_real(source: int) -> dict[str, Any]:
    from accel_state.partial_state import PartialState

    got = broadcast(data_of(PartialState().process_index), from_process=source)
    # Not handed back: tensors of some dtypes cannot be pickled.
    assert all((tensor.to(torch.complex64) == float(source)).all() for tensor in got.pop("large others")[2:])
    return got


@pytest.mark.parametrize("source", [0, 2])
def test_real_processes_receive_what_the_source_has(world, source):
    for got in world(3).run(broadcast_real, source):
        assert got["more"][1].item() == source
        assert set(got["large"].tolist()) == {source}
        assert got["half"].tolist() == [[source] * 4] * 2
