from __future__ import annotations

import io

import pytest

from accel_launch.config.menu import make_asker, moved
from accel_launch.config.prompts import PlainAsker

UP, DOWN = b"\x1b[A", b"\x1b[B"


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ([DOWN], 1),
        ([UP], 11),
        ([b"\x1bOB", b"j", b"k"], 1),
        ([b"2"], 2),
        ([b"1", b"0"], 10),
        ([b"1", b"5"], 5),  # 15 is too far, so it is 5
        ([b"1", DOWN, b"1"], 1),
        ([b"x", b"\x1b[5"], 0),
    ],
)
def test_keys_move_through_a_menu_of_twelve(keys, place):
    typed, at = "", 0
    for key in keys:
        typed, at = moved(key, typed, at, 12)
    assert at == place


def test_what_is_piped_is_asked_plainly(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert type(make_asker({"TERM": "xterm"})) is PlainAsker
