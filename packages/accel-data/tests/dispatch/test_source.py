from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from accel_data.batch_metadata import BatchMetadata
from accel_data.dispatch.messages import Kind
from accel_data.dispatch.scatter import ScatteredStep, ScatterPlan
from accel_data.dispatch.source import read_steps, send_steps


class Diary:
    """Stands for the way to the other ranks, and writes down what happens when."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def send(self, deal: ScatteredStep, *, num_following: int) -> None:
        self.entries.append(f"send {deal.pieces[0][0]}, {num_following} follow")

    def send_kind(self, kind: Kind) -> None:
        self.entries.append(kind.name.lower())

    def batches(self, size: int, *, fails: bool = False) -> Iterator[tuple[list[str], BatchMetadata]]:
        for number in range(size):
            self.entries.append(f"read {number}")
            yield [str(number)], BatchMetadata(num_samples=1)
        if fails:
            raise KeyError("the disk is full")


def run(size: int, **flags: Any) -> list[str]:
    diary = Diary()
    dealer = ScatterPlan(num_ranks=1, rows=1, split=False, even=False)
    steps = read_steps(diary.batches(size, **flags), dealer, drop_last=False, loader_state=None)
    try:
        for step, _ in send_steps(steps, diary, rank=0):  # type: ignore[arg-type]
            diary.entries.append(f"use {step.piece[0]}")
    except KeyError:
        diary.entries.append("raise")
    return diary.entries


def test_the_step_after_the_next_is_read_while_the_others_use_the_current_one() -> None:
    assert run(4) == [
        *("read 0", "read 1"),
        *("send 0, 1 follow", "read 2", "use 0"),
        *("send 1, 1 follow", "read 3", "use 1"),
        *("send 2, 1 follow", "use 2"),
        *("send 3, 0 follow", "use 3"),
    ]


def test_an_error_comes_when_its_step_would_have() -> None:
    assert run(2, fails=True) == [
        *("read 0", "read 1"),
        *("send 0, 1 follow", "use 0"),
        *("send 1, 1 follow", "use 1"),
        *("failure", "raise"),
    ]


@pytest.mark.parametrize(("fails", "expected"), [(False, ["end"]), (True, ["failure", "raise"])])
def test_without_any_step_the_others_are_told_why(fails: bool, expected: list[str]) -> None:
    assert run(0, fails=fails) == expected


def test_the_only_step_is_known_to_be_the_last() -> None:
    assert run(1) == ["read 0", "send 0, 0 follow", "use 0"]
