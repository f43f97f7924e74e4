from __future__ import annotations

from accel_launch.processes.output import Tail


def test_lines_may_come_in_pieces_and_progress_bars_are_one_line():
    tail = Tail()
    for chunk in (b"on", b"e\ntwo\r\n 1%\r 50%\r100%\n\nla", b"st"):
        tail.feed(chunk)
    assert tail.lines() == ("one", "two", "100%", "last")


def test_only_the_end_is_kept_however_much_is_written():
    tail = Tail()
    for number in range(1000):
        tail.feed(b"%d\n" % number)
    tail.feed(b"x" * 10**6)
    lines = tail.lines()
    assert lines[-2] == "999"
    assert len(lines) <= 201
    assert len(lines[-1]) <= 2**18


def test_the_moment_of_the_first_traceback_is_noted_even_if_it_comes_in_pieces():
    tail = Tail()
    tail.feed(b"fine\nTraceback (most rec")
    assert tail.traceback_at is None
    tail.feed(b"ent call last):\n")
    noted = tail.traceback_at
    tail.feed(b"Traceback (most recent call last):\n")
    assert tail.traceback_at == noted is not None


def test_what_is_no_text_is_kept_as_well_as_can_be():
    tail = Tail()
    tail.feed(b"\xff ok\n")
    assert tail.lines() == ("\ufffd ok",)
