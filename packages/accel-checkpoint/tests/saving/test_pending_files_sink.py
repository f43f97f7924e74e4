"""What a file writer computes, and which errors it raises."""

from __future__ import annotations

import errno
import os

import pytest

from accel_checkpoint.files import digest_of
from accel_checkpoint.saving.pending_files import FileSink

PIECE = bytes(range(256)) * 2**14  # 4 MiB
NUM_PIECES = 12


def write_all(path) -> FileSink:
    with FileSink(path) as sink:
        for _ in range(NUM_PIECES):
            sink.write(PIECE)
    return sink


def test_the_digest_and_the_size_are_those_of_the_file(tmp_path):
    sink = write_all(tmp_path / "large")
    assert (tmp_path / "large").read_bytes() == PIECE * NUM_PIECES
    assert (sink.num_bytes, sink.digest) == (
        len(PIECE) * NUM_PIECES,
        digest_of(tmp_path / "large"),
    )


def test_an_error_of_the_caller_comes_first(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: pytest.fail("a file that is not complete is not flushed"))
    with pytest.raises(KeyError), FileSink(tmp_path / "a") as sink:
        sink.write(b"piece")
        raise KeyError("its own")


@pytest.mark.parametrize("num_pieces", [1, 2])
def test_a_write_that_fails_is_raised_with_the_file(tmp_path, monkeypatch, num_pieces):
    def fail(descriptor, data):
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(OSError, match="the disk is broken.*/a'"), FileSink(tmp_path / "a") as sink:
        for _ in range(num_pieces):
            sink.write(b"piece")


def test_an_error_of_the_disk_is_raised_though_a_later_call_would_succeed(tmp_path, monkeypatch):
    def fails_once(file):
        monkeypatch.undo()
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(os, "fsync", fails_once)
    with pytest.raises(OSError, match="the disk is broken"):
        write_all(tmp_path / "large")
