"""The disk works on a file while it is written, and errors of the disk are told."""

from __future__ import annotations

import errno
import os
import threading
import zlib

import pytest

from accel_checkpoint.saving.sink import FileSink

PIECE = bytes(range(256)) * 2**14  # 4 MiB
NUM_PIECES = 12


def write_all(path) -> FileSink:
    with FileSink(path) as sink:
        for _ in range(NUM_PIECES):
            sink.write(PIECE)
    return sink


def test_a_large_file_is_forced_to_disk_while_it_is_written(tmp_path, monkeypatch):
    threads, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (threads.append(threading.current_thread()), real(file)))
    sink = write_all(tmp_path / "large")
    assert (tmp_path / "large").read_bytes() == PIECE * NUM_PIECES
    assert sink.digest == f"crc32:{zlib.crc32(PIECE * NUM_PIECES):08x}"
    assert threads[-1] is threading.main_thread()
    assert len(threads) > 1
    assert not any(thread.is_alive() for thread in threads[:-1])


def test_an_error_of_the_disk_is_raised_though_a_later_call_would_succeed(tmp_path, monkeypatch):
    def fails_once(file):
        monkeypatch.undo()
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(os, "fsync", fails_once)
    with pytest.raises(OSError, match="the disk is broken"):
        write_all(tmp_path / "large")


def test_at_the_end_of_the_interpreter_a_file_is_written_without_a_thread(tmp_path, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    write_all(tmp_path / "large")
    assert (tmp_path / "large").stat().st_size == len(PIECE) * NUM_PIECES
