from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from accel_data.dispatch.send import dispatched_steps, receive_steps, send_steps
from accel_data.step import NO_BATCH, GlobalStep, ReadStates, full_step
from accel_ops import gather
from accel_ops.transport import ProcessGroupTransport, current_transport, use_transport
from accel_state.errors import DistributedOperationException, StateError


def exchange(pieces_of_steps: list[list[Any]]) -> list[Any]:
    """Send steps to rank 1 and return its pieces there."""
    shape = full_step(2, 2)
    if current_transport().rank == 0:
        read = ((GlobalStep(pieces, shape, 2), ReadStates()) for pieces in pieces_of_steps)
        assert len(list(dispatched_steps(send_steps(read)))) == len(pieces_of_steps)
        return []
    steps = [step for step, _ in dispatched_steps(receive_steps(1, None))]
    assert [step.num_following for step in steps[:-1]] == [
        sum(piece is not NO_BATCH for piece in pieces) for pieces in pieces_of_steps[1:]
    ]
    assert steps[-1].num_following == 0
    assert all(step.shape == shape and step.num_batches == 2 for step in steps)
    return [step.pieces[1] for step in steps]


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
        [torch.ones(1), NO_BATCH],
        [["long" * 5000], ["text" * 5000]],
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
    assert pieces[7] is NO_BATCH
    assert pieces[8] == ["text" * 5000]


def test_pieces_may_differ_between_ranks_and_steps(world: Callable[[int], Any]) -> None:
    world(2).run(send_all_kinds)


def change_a_piece() -> Any:
    pieces = exchange([[torch.zeros(3), torch.zeros(3)], [torch.zeros(3), torch.ones(3)]])
    if pieces:
        pieces[0].fill_(7)
        return pieces[1].tolist()
    return None


def test_pieces_have_memory_of_their_own(world: Callable[[int], Any]) -> None:
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


def test_a_step_takes_two_collectives_and_the_end_one(world: Callable[[int], Any]) -> None:
    assert world(2).run(count_collectives) == [21, 21]


def failing() -> Iterator[Any]:
    raise KeyError("the disk is full")
    yield


def fail() -> str:
    try:
        list(
            dispatched_steps(
                send_steps(failing()) if current_transport().rank == 0 else receive_steps(1, None)
            )
        )
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
