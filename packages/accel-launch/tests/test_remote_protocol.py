from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from accel_launch.plan import LogSettings, ProcessPlan
from accel_launch.processes.child import ChildEnding
from accel_launch.remote_protocol import Endings, Order, last_lines_within

ENDED = Endings((ChildEnding(-9, last_lines=("é", "x"), rank=3, host="node"),), num_memory_kills=1)


@pytest.mark.parametrize("logs", [None, LogSettings("3", None, "r"), LogSettings("0:1", Path("/logs"))])
def test_an_order_arrives_as_it_was_sent_with_the_values_of_private_variables(logs):
    process = ProcessPlan(("python", "a b"), Path("/srv"), {"A": "1"}, ("B",), "host", 3)
    order = Order((process,), 2.5, True, 1, "[3] ", None, logs)
    assert Order.decode(order.encode()) == order
    (arrived,) = Order.decode(Order((replace(process, private={"K": "hush"}),), 1.0).encode()).processes
    assert arrived == process.with_variables(K="hush")


def test_endings_are_the_last_message_among_the_lines():
    lines = ["before", *ENDED.encode().decode().split("\n"), "after"]
    assert Endings.last_in(lines) == ENDED
    assert Endings.last_in(["before"]) is None


def test_the_moment_of_a_failure_is_kept_on_the_clock_of_the_reader():
    sent = Endings((ChildEnding(1, failed_at=5.0),))
    received = Endings.last_in(sent.encode().decode().split("\n"))
    assert received is not None
    assert received.ranks[0].failed_at == pytest.approx(5.0, abs=60)


@pytest.mark.parametrize(
    "broken", ["{", "[]", '{"ranks": []}', '{"interrupted_by": null, "num_memory_kills": 0, "ranks": [1]}']
)
def test_a_message_that_is_not_sound_is_none(broken):
    mark = ENDED.encode().decode().split("\n")[0]
    assert Endings.last_in([mark + broken]) is None


def test_the_last_lines_are_kept_as_far_as_they_fit():
    lines = ["first", "x" * 10_000, "last"]
    assert last_lines_within(lines, 10_000) == ["first", "x" * 2000, "last"]
    assert last_lines_within(lines, 100) == ["last"]
    kept = last_lines_within(["\x00" * 2000] * 50, 2**17)
    assert 1 < len(json.dumps(kept)) <= 2**17
