from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from accel_data.dispatch.send import DispatchedSteps, receive_steps, send_steps
from accel_data.step import NO_BATCH, START, GlobalStep, ReadStates, full_step
from accel_ops import gather
from accel_ops.transport import ProcessGroupTransport, current_transport, use_transport
from accel_state.errors import DistributedOperationException, StateError


def exchange(pieces_of_steps: list[list[Any]]) -> list[Any]:
    """Send steps to rank 1 and return its pieces there."""
    shape, rank = full_step(2, 2), current_transport().rank
    read = ((GlobalStep(pieces, shape, 2), ReadStates()) for pieces in pieces_of_steps)
    announced = send_steps(read, 0) if rank == 0 else receive_steps(1, None)
    steps = list(DispatchedSteps(announced, START, rank=rank, rows_per_batch=2))
    assert len(steps) == sum(pieces[rank] is not NO_BATCH for pieces in pieces_of_steps)
    assert [info.is_last for _, info in steps] == [False] * (len(steps) - 1) + [True]
    assert all(info.shape == shape for _, info in steps)
    assert [info.end.batches for _, info in steps] == list(range(2, 2 * len(steps) + 2, 2))
    return [piece for piece, _ in steps] if rank else []


def send_all_kinds() -> None:
    x = torch.arange(6.0).view(2, 3)
    pieces = exchange([
        [{"text": ["a"]}, {"text": ["b", "c"]}],
        [None, (torch.tensor(1), [torch.zeros(0, 3)])],
        [torch.ones(1), torch.tensor([True, False])],
        [None, {"x": torch.ones(2, dtype=torch.bfloat16), "y": x.t()}],
        [None, torch.eye(3).to_sparse()],
        [torch.zeros(2, 100_000), torch.ones(2, 100_000)],
        [None, None],
        [["long" * 5000], ["text" * 5000]],
        [torch.ones(1), NO_BATCH],
    ])  # fmt: skip
    if not pieces:
        return
    assert pieces[0] == {"text": ["b", "c"]}
    assert (pieces[1][0].item(), pieces[1][1][0].shape) == (1, (0, 3))
    assert pieces[2].tolist() == [True, False]
    assert torch.equal(pieces[3]["y"], x.t())
    assert pieces[3]["x"].dtype == torch.bfloat16
    assert torch.equal(pieces[4].to_dense(), torch.eye(3))
    assert pieces[5].eq(1).all()
    assert pieces[6] is None
    assert pieces[7] == ["text" * 5000]


def test_pieces_may_differ_between_ranks_and_steps(world: Callable[[int], Any]) -> None:
    world(2).run(send_all_kinds)


def change_a_piece() -> Any:
    pieces = exchange([[torch.zeros(3), torch.zeros(3)], [torch.zeros(3), torch.ones(3)]])
    if pieces:
        pieces[0].fill_(7)
        return pieces[1].tolist()
    return None


def test_pieces_have_separate_memory(world: Callable[[int], Any]) -> None:
    assert world(2).run(change_a_piece) == [None, [1, 1, 1]]


class Counting(ProcessGroupTransport):
    """Counts the collectives."""

    num_calls = 0

    def all_gather(self, tensors: Any) -> Any:
        self.num_calls += 1
        return super().all_gather(tensors)

    def begin_broadcast(self, tensor: Any, *, source: int) -> Any:
        self.num_calls += 1
        return super().begin_broadcast(tensor, source=source)


def count_collectives() -> int:
    group = torch.distributed.group.WORLD
    assert group is not None
    transport = Counting(group)
    with use_transport(transport):
        exchange([[torch.ones(4), torch.ones(4)]] * 10)
    return transport.num_calls


def test_two_steps_take_two_collectives_and_the_end_one(world: Callable[[int], Any]) -> None:
    assert world(2).run(count_collectives) == [11, 11]


def failing() -> Iterator[Any]:
    raise KeyError("the disk is full")
    yield


def fail() -> str:
    rank = current_transport().rank
    announced = send_steps(failing(), 0) if rank == 0 else receive_steps(1, None)
    try:
        list(DispatchedSteps(announced, START, rank=rank, rows_per_batch=1))
    except (KeyError, StateError) as error:
        return str(error)
    return "no error"


def test_a_failure_is_an_error_at_the_other_end_that_names_it(world: Callable[[int], Any]) -> None:
    first, second = world(2).run(fail)
    assert first == "'the disk is full'"
    assert second.startswith(
        "Rank 0 reads the data for all ranks and failed with `KeyError: 'the disk is full'`. See its output"
    )


class Unsendable:
    def __reduce__(self) -> Any:
        raise TypeError("not to be sent")


def send_what_cannot_be_pickled() -> tuple[str, int]:
    raised = "nothing"
    try:
        exchange([[torch.ones(1), Unsendable()]])
    except (TypeError, DistributedOperationException) as error:
        raised = str(error)
    return raised, int(gather(torch.ones(1)).sum())


def test_a_piece_that_cannot_be_pickled_is_an_error_at_both_ends(world: Callable[[int], Any]) -> None:
    first, second = world(2).run(send_what_cannot_be_pickled)
    assert first == ("not to be sent", 2)
    assert second == ("Process 0 could not pickle its object for `dispatch_batch`. See its error.", 2)
