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


def kinds_of_memory(size: int, rank: int) -> dict[str, torch.Tensor]:
    with torch.inference_mode():
        inference = torch.full((size,), float(rank))
    return {
        "plain": torch.full((size,), float(rank)),
        "leaf with gradients": torch.full((size,), float(rank), requires_grad=True),
        "strided": torch.full((size, 2), float(rank))[:, 1],
        "inference": inference,
        "conjugated": torch.full((size,), complex(rank, 1)).conj(),
        "0-dim": torch.tensor(float(rank)),
        "empty": torch.empty(0),
    }


@pytest.mark.parametrize("size", [2, 100_000])
@pytest.mark.parametrize("kind", kinds_of_memory(2, 0))
def test_every_rank_gets_its_own_back_with_the_values_of_the_source(ranks, size, kind):
    """As with Accelerate: scripts that ignore what is returned get the values, too."""

    def body(rank: int) -> tuple[bool, bool, bool]:
        data = kinds_of_memory(size, rank)[kind]
        needed = data.requires_grad
        received = broadcast([data], 1)[0]
        expected = kinds_of_memory(size, 1)[kind]
        assert torch.equal(received.resolve_conj(), data.resolve_conj())
        return (
            (received is data) == (kind != "inference"),
            torch.equal(data.resolve_conj(), expected.resolve_conj()),
            data.requires_grad == needed,
        )

    assert ranks(2).run(body) == [(True, True, True)] * 2


@pytest.mark.parametrize("size", [2, 100_000])
def test_an_expanded_tensor_stays_and_a_new_one_is_returned(ranks, size):
    def body(rank: int) -> tuple[bool, list[float]]:
        data = torch.tensor([float(rank)]).expand(size)
        received = broadcast(data)
        return bool((data == rank).all()), received[-2:].tolist()

    assert ranks(2).run(body) == [(True, [0.0, 0.0])] * 2


def test_what_autograd_has_saved_is_not_overwritten_unnoticed(ranks):
    def body(rank: int) -> str:
        data = torch.ones(3, requires_grad=True)
        total = (data * data).sum()
        broadcast(data)
        try:
            total.backward()
        except RuntimeError as error:
            return str(error)
        return ""

    source, other = ranks(2).run(body)
    assert source == ""
    assert "modified by an inplace operation" in other


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


def overwrite_real() -> tuple[bool, str]:
    from accel_state.partial_state import PartialState

    rank = PartialState().process_index
    data = torch.full((100_000,), float(rank), requires_grad=True)
    strided = torch.full((100_000, 2), float(rank))[:, 1]
    total = (data * data).sum()
    broadcast([data, strided], from_process=1)
    try:
        total.backward()
    except RuntimeError as error:
        return bool((data == 1).all() and (strided == 1).all()), str(error)
    return bool((data == 1).all() and (strided == 1).all()), ""


def test_real_processes_overwrite_and_notify_autograd(world):
    (first, error), (second, no_error) = world(2).run(overwrite_real)
    assert first
    assert second
    assert "modified by an inplace operation" in error
    assert no_error == ""


def gather_real_columns() -> list[float]:
    from accel_ops import gather, reduce
    from accel_state.partial_state import PartialState

    columns = torch.full((100_000, 2), float(PartialState().process_index))[:, 1]
    return [gather(columns).sum().item(), reduce(columns, "sum").sum().item()]


def test_real_processes_send_a_single_strided_tensor(world):
    assert world(2).run(gather_real_columns) == [[100_000.0, 100_000.0]] * 2


def test_tensors_of_inference_mode_can_be_used_outside_of_it(ranks):
    def body(rank: int) -> list[float]:
        with torch.inference_mode():
            data = torch.full((3,), float(rank))
        received = broadcast(data)
        (received * torch.ones((), requires_grad=True)).sum().backward()
        return received.add_(1).tolist()

    assert ranks(2).run(body) == [[1.0] * 3] * 2
