from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from accel_data.dispatch.messages import Kind, Messages
from accel_data.dispatch.scatter import ScatteredStep
from accel_data.step import full_step
from accel_ops.transport import Transport, use_transport
from accel_state.errors import StateError


class Tape(Transport):
    """Records what the reading rank broadcasts, and plays it back to another."""

    world_size = 2

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[torch.Tensor] = []
        self.is_playing = False

    def broadcast(self, tensors: Sequence[torch.Tensor], *, source: int) -> list[torch.Tensor]:
        (flat,) = tensors
        if not self.is_playing:
            self.recorded.append(flat.clone())
            return [flat]
        sent = self.recorded.pop(0)
        assert len(sent) == len(flat), "both ends must agree on the size before"
        return [sent]


def deal(*pieces: Any) -> ScatteredStep:
    return ScatteredStep(list(pieces), full_step(2, len(pieces)), len(pieces))


def exchange(deals: list[ScatteredStep]) -> tuple[list[Any], int]:
    """Send steps and receive them at rank 1; return its pieces and the number of broadcasts."""
    tape = Tape()
    with use_transport(tape):
        sender = Messages(num_ranks=2, rank=0)
        for number, one in enumerate(deals):
            sender.send(one, num_following=0 if number == len(deals) - 1 else 2)
        sender.send_kind(Kind.END)
        num_broadcasts = len(tape.recorded)
        tape.is_playing = True
        receiver = Messages(num_ranks=2, rank=1)
        steps = []
        while (step := receiver.receive()) is not None:
            steps.append(step)
    assert not tape.recorded
    assert [step.num_following for step in steps] == [2] * (len(deals) - 1) + [0]
    return [step.piece for step in steps], num_broadcasts


def test_steps_of_one_shape_take_one_broadcast_each() -> None:
    deals = [deal(torch.full((2, 90), rank), torch.full((2, 90), rank + 0.5)) for rank in range(10)]
    pieces, num_broadcasts = exchange(deals)
    assert [piece[0, 0].item() for piece in pieces] == [rank + 0.5 for rank in range(10)]
    assert num_broadcasts == 11


def test_a_step_that_does_not_fit_takes_one_more() -> None:
    small, large = torch.zeros(2), torch.zeros(2, 10_000)
    _, num_broadcasts = exchange([deal(small, small), deal(large, large), deal(large, large)])
    assert num_broadcasts == 3 + 1 + 1


def test_pieces_may_differ_between_ranks_and_steps() -> None:
    deals = [
        deal({"text": ["a"]}, {"text": ["b", "c"]}),
        deal(None, (torch.tensor(1), [torch.zeros(0, 3)])),
        deal(torch.ones(1), torch.tensor([True, False])),
    ]
    pieces, _ = exchange(deals)
    assert pieces[0] == {"text": ["b", "c"]}
    assert (pieces[1][0].item(), pieces[1][1][0].shape) == (1, (0, 3))
    assert pieces[2].tolist() == [True, False]


def test_pieces_have_memory_of_their_own() -> None:
    pieces, _ = exchange([deal(torch.zeros(3), torch.zeros(3)), deal(torch.zeros(3), torch.ones(3))])
    pieces[0].fill_(7)
    assert pieces[1].tolist() == [1, 1, 1]


def test_a_failure_is_an_error_at_the_other_end() -> None:
    tape = Tape()
    with use_transport(tape):
        Messages(num_ranks=2, rank=0).send_kind(Kind.FAILURE)
        tape.is_playing = True
        with pytest.raises(StateError, match="Rank 0 reads the data for all ranks and failed"):
            Messages(num_ranks=2, rank=1).receive()


class Unsendable:
    def __reduce__(self) -> Any:
        raise TypeError("not to be sent")


def test_a_piece_that_cannot_be_sent_is_an_error_at_both_ends() -> None:
    tape = Tape()
    with use_transport(tape):
        with pytest.raises(TypeError, match="not to be sent"):
            Messages(num_ranks=2, rank=0).send(deal(torch.ones(1), Unsendable()), num_following=2)
        tape.is_playing = True
        with pytest.raises(StateError, match="Rank 0 reads the data for all ranks and failed"):
            Messages(num_ranks=2, rank=1).receive()


def test_sparse_tensors_and_pieces_of_none_arrive() -> None:
    pieces, _ = exchange([deal(None, torch.eye(3).to_sparse()), deal(None, None)])
    assert torch.equal(pieces[0].to_dense(), torch.eye(3))
    assert pieces[1] is None
