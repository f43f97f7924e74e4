from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from accel_launch.processes.child import ChildEnding
from accel_launch.report import make_report

OWN = ("Traceback (most recent call last):", '  File "/t.py", line 2, in f', "ValueError: mine")
NAMES_RANK_1 = (OWN[0], "CheckpointError: The checkpoint was not saved (rank 1: ValueError: mine).")
LOST = ("Traceback (most recent call last):", "RuntimeError: Connection closed by peer")


def report(*endings: ChildEnding, **options):
    ranks = [replace(ending, rank=rank, host="here") for rank, ending in enumerate(endings)]
    return make_report(ranks, **options)


def failed(return_code: int, at: float = 1.0, lines: tuple[str, ...] = (), was_ended: bool = False):
    return ChildEnding(return_code, at, was_ended, lines)


@pytest.mark.parametrize(
    ("endings", "first", "outcomes"),
    [
        ([failed(3), ChildEnding(0)], 0, ["failed first", "finished"]),
        ([failed(1, at=2.0), failed(1, at=1.0)], 1, ["failed too", "failed first"]),
        ([failed(-15, at=0.5, was_ended=True), failed(-11, at=1.0)], 1, ["died of it", "failed first"]),
        ([failed(1, at=0.5, lines=LOST), failed(1, at=1.0, lines=OWN)], 1, ["died of it", "failed first"]),
        ([failed(1, at=2.0, lines=LOST), failed(-9, at=1.0)], 1, ["died of it", "failed first"]),
        (
            [failed(1, at=0.5, lines=OWN, was_ended=True), failed(1, at=1.0)],
            0,
            ["failed first", "failed too"],
        ),
        ([failed(-15, at=0.4, lines=OWN, was_ended=True), failed(3)], 1, ["died of it", "failed first"]),
        (
            [failed(1, at=0.5, lines=LOST), failed(-15, lines=OWN, was_ended=True)],
            1,
            ["died of it", "failed first"],
        ),
        (
            [failed(143, was_ended=True), failed(-9, was_ended=True), failed(4)],
            2,
            ["died of it"] * 2 + ["failed first"],
        ),
        ([failed(-15)], 0, ["failed first"]),
        # An error that names the rank whose error it is, as those of checkpoints do.
        (
            [
                failed(1, at=0.5, lines=NAMES_RANK_1),
                failed(-15, at=1.0, lines=OWN, was_ended=True),
                failed(-15),
            ],
            1,
            ["failed too", "failed first", "failed too"],
        ),
        # A rank that was asked to end and has a handler for that.
        ([failed(1, at=2.0, was_ended=True), failed(1, at=3.0)], 1, ["died of it", "failed first"]),
        (
            [
                failed(1, at=0.5, lines=(*OWN, "handled, goes on"), was_ended=True),
                failed(1, at=1.0, lines=OWN),
            ],
            1,
            ["died of it", "failed first"],
        ),
        # A message of several lines.
        (
            [failed(1, at=0.5, lines=(*OWN, "more of it"), was_ended=True), failed(1, at=1.0, lines=LOST)],
            0,
            ["failed first", "died of it"],
        ),
    ],
)
def test_the_first_cause_is_the_first_that_is_no_consequence(endings, first, outcomes):
    made = report(*endings)
    assert made.outcome == "failed"
    assert made.first is not None
    assert made.first.rank == first
    assert [rank.outcome for rank in made.ranks] == outcomes


@pytest.mark.parametrize(
    ("endings", "options", "outcome", "exit_code"),
    [
        ([ChildEnding(0), ChildEnding(0)], {}, "succeeded", 0),
        ([failed(-15)], {"interrupted_by": 15}, "interrupted", 143),
        ([failed(1)], {"interrupted_by": 2}, "interrupted", 130),
        ([failed(3)], {"interrupted_by": 2}, "interrupted", 3),
        ([failed(-2)], {}, "interrupted", 130),
        ([ChildEnding(0)], {"interrupted_by": 15}, "interrupted", 0),
        ([failed(-11), failed(1, at=2.0)], {}, "failed", 139),
        ([failed(9, lines=LOST), failed(-15, lines=OWN, was_ended=True)], {}, "failed", 1),
    ],
)
def test_outcome_and_exit_code(endings, options, outcome, exit_code):
    made = report(*endings, **options)
    assert (made.outcome, made.exit_code) == (outcome, exit_code)
    assert (made.first is None) == (outcome != "failed")


def test_a_kill_is_blamed_on_the_memory_only_if_the_kernel_has_counted_one():
    assert report(failed(-9)).first.reason == "was killed by SIGKILL"
    assert report(failed(-9), num_memory_kills=1).first.reason == "was killed by the out-of-memory killer"
    assert report(failed(-11), num_memory_kills=1).first.reason == "was killed by SIGSEGV"


def test_to_dict_survives_json():
    made = report(failed(1, lines=OWN), failed(-15, was_ended=True))
    data = json.loads(json.dumps(made.to_dict()))
    failed_at = datetime.fromisoformat(data["ranks"][0].pop("failed_at"))
    assert data["first_failure"].pop("failed_at") == failed_at.isoformat(timespec="milliseconds")
    assert data["outcome"] == "failed"
    assert data["first_failure"] == data["ranks"][0]
    assert data["ranks"][0] == {
        "rank": 0,
        "host": "here",
        "outcome": "failed first",
        "has_left": False,
        "exit_code": 1,
        "signal": None,
        "reason": "ended with exit code 1",
        "exception": {
            "type": "ValueError",
            "message": "mine",
            "file": "/t.py",
            "line": 2,
            "function": "f",
        },
        "last_lines": list(OWN),
    }
    assert (data["ranks"][1]["signal"], data["ranks"][1]["exception"]) == ("SIGTERM", None)


def test_moments_of_failures_are_reported_by_the_clock_on_the_wall():
    before = datetime.now(UTC)
    first, second = report(failed(1, at=time.monotonic() - 60), failed(1, at=time.monotonic())).ranks
    assert before - timedelta(seconds=61) < first.failed_at <= datetime.now(UTC) - timedelta(seconds=60)
    assert before - timedelta(seconds=1) < second.failed_at <= datetime.now(UTC)
    assert report(ChildEnding(0)).to_dict()["ranks"][0]["failed_at"] is None


@pytest.mark.parametrize(
    ("lines", "ended_at", "had_ended"), [(OWN, 0.5, True), (OWN, 2.0, False), (LOST, 2.0, True)]
)
def test_a_rank_that_finished_before_another_failed_is_marked(lines, ended_at, had_ended):
    made = report(failed(1, lines=lines), ChildEnding(0, ended_at=ended_at))
    assert [rank.had_ended for rank in made.ranks] == [False, had_ended]
