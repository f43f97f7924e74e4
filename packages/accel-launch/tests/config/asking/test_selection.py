from __future__ import annotations

import io

from accel_launch.config.asking.plain import PlainAsker
from accel_launch.config.asking.selection import make_asker


def test_what_is_piped_is_asked_plainly(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert type(make_asker({"TERM": "xterm"})) is PlainAsker
