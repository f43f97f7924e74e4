from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from accel_data.dispatch.scatter import ScatterPlan
from accel_data.dispatch.send import DispatchedSteps, read_steps, send_steps
from accel_data.step import START, ReadStates
from accel_ops.transport import Transport, use_transport


class Diary(Transport):
    """The connection to another rank, which writes down what is read, sent and used when."""

    world_size = 2

    def __init__(self) -> None:
        self.entries: list[str] = []

    def all_gather(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        (own,) = tensors
        *_, size = own[:24].view(torch.int64).tolist()
        message = pickle.loads(own[24 : 24 + size].numpy().tobytes())
        self.entries.append(describe(message))
        return [torch.stack([own, own])]

    def batches(self, size: int, *, fails: bool = False) -> Iterator[tuple[list[str], int]]:
        for number in range(size):
            self.entries.append(f"read {number}")
            yield [str(number)], 1
        if fails:
            raise KeyError("the disk is full")


def describe(message: Any) -> str:
    return "announce " + ", ".join(
        "end" if step is None else step if isinstance(step, str) else step.pieces[0].skeleton[0]
        for step in message
    )


def run(size: int, **flags: Any) -> list[str]:
    plan = ScatterPlan(num_ranks=1, rows=1, split=False, even=False)
    with use_transport(Diary()) as diary:
        steps = read_steps(diary.batches(size, **flags), plan, ReadStates)
        try:
            for (piece,), step in DispatchedSteps(send_steps(steps, 0), START, rank=0, rows_per_batch=1):
                diary.entries.append(f"use {piece}" + ", the last" * step.is_last)
        except KeyError:
            diary.entries.append("raise")
    return diary.entries


def test_two_steps_are_sent_at_once_and_no_more_are_read_before_they_are_used() -> None:
    assert run(5) == [
        *("read 0", "read 1", "announce 0, 1", "use 0"),
        *("read 2", "read 3", "announce 2, 3", "use 1", "use 2"),
        *("read 4", "announce 4, end", "use 3", "use 4, the last"),
    ]


def test_an_end_that_falls_between_two_messages_is_one_of_its_own() -> None:
    assert run(2) == ["read 0", "read 1", "announce 0, 1", "use 0", "announce end", "use 1, the last"]


@pytest.mark.parametrize("size", [2, 3])
def test_an_error_comes_when_its_step_would_have(size: int) -> None:
    diary = run(size, fails=True)
    assert diary[-2:] == [f"use {size - 1}", "raise"]
    assert [entry for entry in diary if "KeyError" in entry] == [
        "announce KeyError: 'the disk is full'" if size == 2 else "announce 2, KeyError: 'the disk is full'"
    ]


@pytest.mark.parametrize(
    ("fails", "expected"),
    [(False, ["announce end"]), (True, ["announce KeyError: 'the disk is full'", "raise"])],
)
def test_without_any_step_the_others_learn_why(fails: bool, expected: list[str]) -> None:
    assert run(0, fails=fails) == expected


def test_the_only_step_is_known_to_be_the_last() -> None:
    assert run(1) == ["read 0", "announce 0, end", "use 0, the last"]
