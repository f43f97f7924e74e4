from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from accel_data.dispatch import source
from accel_data.dispatch.scatter import ScatteredStep, ScatterPlan
from accel_data.step import ReadStates


class Diary:
    """Stands for the way to the other ranks, and writes down what happens when."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def send_step(self, step: ScatteredStep, *, num_following: int) -> None:
        self.entries.append(f"send {step.pieces[0][0]}, {num_following} follow")

    def send_end(self) -> None:
        self.entries.append("end")

    def send_failure(self, error: Exception) -> None:
        self.entries.append("failure")

    def batches(self, size: int, *, fails: bool = False) -> Iterator[tuple[list[str], int]]:
        for number in range(size):
            self.entries.append(f"read {number}")
            yield [str(number)], 1
        if fails:
            raise KeyError("the disk is full")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    def run(size: int, **flags: Any) -> list[str]:
        diary = Diary()
        for name in ("send_step", "send_end", "send_failure"):
            monkeypatch.setattr(source, name, getattr(diary, name))
        plan = ScatterPlan(num_ranks=1, rows=1, split=False, even=False)
        steps = source.read_steps(diary.batches(size, **flags), plan, drop_last=False, read_states=ReadStates)
        try:
            for step, _ in source.send_steps(steps, rank=0):
                diary.entries.append(f"use {step.piece[0]}")
        except KeyError:
            diary.entries.append("raise")
        return diary.entries

    return run


def test_the_step_after_the_next_is_read_while_the_others_use_the_current_one(
    run: Callable[..., list[str]],
) -> None:
    assert run(4) == [
        *("read 0", "read 1"),
        *("send 0, 1 follow", "read 2", "use 0"),
        *("send 1, 1 follow", "read 3", "use 1"),
        *("send 2, 1 follow", "use 2"),
        *("send 3, 0 follow", "use 3"),
    ]


def test_an_error_comes_when_its_step_would_have(run: Callable[..., list[str]]) -> None:
    assert run(2, fails=True) == [
        *("read 0", "read 1"),
        *("send 0, 1 follow", "use 0"),
        *("send 1, 1 follow", "use 1"),
        *("failure", "raise"),
    ]


@pytest.mark.parametrize(("fails", "expected"), [(False, ["end"]), (True, ["failure", "raise"])])
def test_without_any_step_the_others_are_told_why(
    run: Callable[..., list[str]], fails: bool, expected: list[str]
) -> None:
    assert run(0, fails=fails) == expected


def test_the_only_step_is_known_to_be_the_last(run: Callable[..., list[str]]) -> None:
    assert run(1) == ["read 0", "send 0, 0 follow", "use 0"]
