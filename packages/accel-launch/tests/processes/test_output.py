from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from accel_launch.processes.output import MESSAGE_MARK, Output, Tail


class Screen:
    """Where a process's output goes in these tests: two pipes."""

    def __init__(self) -> None:
        self.out_reader, self.out = os.pipe()
        self.err_reader, self.err = os.pipe()
        for reader in (self.out_reader, self.err_reader):
            os.set_blocking(reader, False)

    def read(self) -> tuple[bytes, bytes]:
        return self._read(self.out_reader), self._read(self.err_reader)

    def _read(self, reader: int) -> bytes:
        try:
            return os.read(reader, 10**6)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        for descriptor in (self.out_reader, self.out, self.err_reader, self.err):
            os.close(descriptor)


@pytest.fixture
def screen() -> Iterator[Screen]:
    made = Screen()
    yield made
    made.close()


def test_bytes_are_passed_on_at_once_to_where_they_belong(screen):
    output = Output(stdout=screen.out, stderr=screen.err)
    os.write(output.stdout, b"no end of line")
    os.write(output.stderr, b"\xff\r10%\r")
    output.drain()
    assert screen.read() == (b"no end of line", b"\xff\r10%\r")
    output.started()
    output.close()


def test_one_destination_has_one_way_so_that_the_order_stays(screen):
    output = Output(stdout=screen.out, stderr=screen.out)
    assert output.stdout == output.stderr
    output.started()
    output.close()


def test_by_line_a_line_waits_for_its_end_or_for_patience_to_end(screen):
    output = Output(is_by_line=True, stdout=screen.out, stderr=screen.err)
    os.write(output.stdout, b"one\ntw")
    output.drain()
    assert (screen.read(), output.has_pending) == ((b"one\n", b""), True)
    os.write(output.stdout, b"o\nname? ")
    output.drain()
    output.flush()
    assert (screen.read(), output.has_pending) == ((b"two\nname? ", b""), False)
    output.started()
    output.close()


def test_a_prefix_precedes_each_line_and_the_last_gets_an_end(screen):
    output = Output(prefix="[h1] ", stdout=screen.out, stderr=screen.err)
    os.write(output.stderr, b"10%\r20%\rdone\nlast")
    output.started()
    output.close()
    assert screen.read() == (b"", b"[h1] 10%\r[h1] 20%\r[h1] done\n[h1] last\n")
    assert output.tail.lines() == ("done", "last")


def test_a_long_line_is_passed_on_without_a_search_at_each_byte(screen):
    output = Output(prefix="[h1] ", stdout=screen.out, stderr=screen.err)
    part = b"." * 12_000  # many seconds of regular expressions, if each byte may be the beginning of a line
    for end in (b"", b"", b"", b"", b"\r\n"):
        os.write(output.stdout, part + end)
        output.drain()
    output.started()
    output.close()
    assert screen.read()[0] == b"[h1] " + 5 * part + b"\r\n"


def test_a_line_of_a_hundred_chunks_is_not_copied_for_each_of_them(screen):
    output = Output(is_by_line=True, stdout=screen.out, stderr=screen.err)
    (channel, _) = output.channels
    held = channel.pending
    for _ in range(100):
        os.write(output.stdout, b"." * 1000)
        output.drain()
    assert channel.pending is held  # which grows in its place
    assert len(held) == 100_000
    output.started()
    held.clear()
    output.close()


@pytest.mark.parametrize("brings_messages", [False, True])
def test_only_messages_of_programs_that_send_them_are_not_shown(screen, brings_messages):
    output = Output(is_by_line=True, brings_messages=brings_messages, stdout=screen.out, stderr=screen.err)
    text, message = b'\x1e{"json": "text sequence"}\n', MESSAGE_MARK + b"{}\n"
    os.write(output.stdout, text + message)
    output.started()
    output.close()
    assert screen.read()[0] == (text if brings_messages else text + message)


def test_a_line_without_end_is_shown_in_pieces(tmp_path):
    with (tmp_path / "screen").open("wb", buffering=0) as screen:
        output = Output(is_by_line=True, prefix="> ", stdout=screen.fileno(), stderr=screen.fileno())
        (channel,) = output.channels
        for _ in range(10):
            os.write(output.stdout, b"." * 60_000)
            output.drain()
            assert len(channel.pending) < 2**19
        output.started()
        output.close()
    shown = (tmp_path / "screen").read_bytes()
    assert shown.startswith(b"> ...")
    assert shown.count(b".") == 600_000


def test_of_an_endless_line_the_beginning_is_remembered_and_what_was_written_over_is_not():
    tail = Tail()
    for chunk in (b"ValueError: ", *[b"x" * 65536] * 50, b"\n50%\r", *[b"y" * 65536] * 5, b"\r100%\n"):
        tail.feed(chunk)
    first, last = tail.lines()
    assert first.startswith("ValueError: xxx")
    assert len(first) == 2000
    assert last == "100%"


def test_when_nothing_reads_the_output_any_more_the_process_learns_it():
    reader, writer = os.pipe()
    output = Output(stdout=writer, stderr=writer)
    os.close(reader)
    os.write(output.stdout, b"for nobody")
    output.drain()
    with pytest.raises(BrokenPipeError):
        os.write(output.stdout, b"more")
    output.started()
    output.close()
    os.close(writer)


def test_a_terminal_is_played_where_there_is_one():
    terminal, destination = os.openpty()
    output = Output(stdout=destination, stderr=destination)
    assert os.isatty(output.stdout)
    os.write(output.stdout, b"one\n")
    output.started()
    output.close()
    assert os.read(terminal, 100) == b"one\r\n"
    os.close(terminal)
    os.close(destination)


def test_lines_may_come_in_pieces_and_progress_bars_are_one_line():
    tail = Tail()
    for chunk in (b"on", b"e\ntwo\r\n 1%\r 50%\r100%\n\nla", b"st"):
        tail.feed(chunk)
    assert tail.lines() == ("one", "two", "100%", "last")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a full disk")
def test_what_a_full_disk_does_not_take_is_lost_and_the_process_continues():
    with open("/dev/full", "wb", buffering=0) as full:
        output = Output(stdout=full.fileno(), stderr=full.fileno())
        os.write(output.stdout, b"lost\n")
        output.drain()
        os.write(output.stdout, b"lost, too\n")
        output.drain()
        assert output.tail.lines() == ("lost", "lost, too")
        output.started()
        output.close()


def test_only_the_end_is_kept_however_much_is_written():
    tail = Tail()
    for number in range(1000):
        tail.feed(b"%d\n" % number)
    tail.feed(b"x" * 10**6)
    lines = tail.lines()
    assert lines[-2] == "999"
    assert len(lines) <= 201
    assert len(lines[-1]) <= 2**18


def test_of_a_message_longer_than_what_is_kept_the_beginning_of_its_traceback_is_remembered():
    tail = Tail()
    tail.feed(b"step 1\n" * 500)
    tail.feed(b"Traceback (most recent call last):\n  File 'a.py'\nValueError: the first line\n")
    tail.feed(b"more\n" * 300)
    lines = tail.lines()
    assert lines[:3] == ("Traceback (most recent call last):", "  File 'a.py'", "ValueError: the first line")
    assert lines[3:] == ("more",) * 300


def test_the_moment_of_the_first_traceback_is_noted_even_if_it_comes_in_pieces():
    tail = Tail()
    tail.feed(b"fine\nTraceback (most rec")
    assert tail.traceback_at is None
    tail.feed(b"ent call last):\n")
    noted = tail.traceback_at
    tail.feed(b"Traceback (most recent call last):\n")
    assert tail.traceback_at == noted is not None


def test_a_traceback_after_which_a_program_continues_is_not_its_failure():
    tail = Tail()
    tail.feed(b"Traceback (most recent call last):\nValueError: handled\n")
    tail.traceback_at -= 3600  # an hour later
    tail.feed(b"step 1\n")
    assert tail.traceback_at is None
    tail.feed(b"Traceback (most recent call last):\nValueError: the last\n")
    assert tail.traceback_at is not None


def test_what_is_no_text_is_kept_as_well_as_can_be():
    tail = Tail()
    tail.feed(b"\xff ok\n")
    assert tail.lines() == ("\ufffd ok",)
