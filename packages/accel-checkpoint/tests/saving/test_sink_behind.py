import threading

import pytest

from accel_checkpoint.digests import digest_of
from accel_checkpoint.saving.sink_behind import FileSinkBehind


def test_pieces_come_into_the_file_in_order(tmp_path):
    with FileSinkBehind(tmp_path / "a") as sink:
        assert [sink.write(piece) for piece in (b"one", memoryview(b"two"), b"")] == [3, 3, 0]
    assert (tmp_path / "a").read_bytes() == b"onetwo"
    assert (sink.num_bytes, sink.digest) == (6, digest_of(tmp_path / "a"))


def test_a_piece_is_written_while_the_caller_gets_the_next(tmp_path):
    may_write = threading.Event()

    def wait_and_run(work):
        assert may_write.wait(60)
        work()

    with FileSinkBehind(tmp_path / "a", run=wait_and_run) as sink:
        sink.write(b"first")  # returns although nothing can be written yet
        may_write.set()
        sink.write(b"second")
    assert (tmp_path / "a").read_bytes() == b"firstsecond"


@pytest.mark.parametrize("num_pieces", [1, 2])
def test_what_fails_behind_is_raised_by_the_next_piece_or_at_the_end(tmp_path, num_pieces):
    def fail(work):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"), FileSinkBehind(tmp_path / "a", run=fail) as sink:
        for _ in range(num_pieces):
            sink.write(b"piece")


def test_an_error_of_the_caller_comes_first(tmp_path):
    def fail(work):
        raise OSError("disk full")

    with pytest.raises(KeyError), FileSinkBehind(tmp_path / "a", run=fail) as sink:
        sink.write(b"piece")
        raise KeyError("its own")
