import os
import signal
import sys
import threading
import time

import pytest
from torch.distributed import HashStore

from accel_checkpoint.files import Digest
from accel_checkpoint.process_identity import has_ended_by_stamp, stamp
from accel_checkpoint.ranks.heartbeat import Heartbeat

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are told by /proc")
ELSEWHERE = "00000000-1-5"
UNKNOWN = "00000000-0-0"


def ended_within(heartbeat, rank, seconds):
    end = time.monotonic() + seconds
    while not (found := heartbeat.ended([rank])) and time.monotonic() < end:
        time.sleep(0.01)
    return found == [rank]


def test_a_rank_that_sends_heartbeats_is_alive_and_one_that_stops_has_ended(distant_ranks):
    store = distant_ranks
    watching = Heartbeat(store, rank=0, beat_s=0.02, silence_s=0.3)
    other = Heartbeat(store, rank=1, beat_s=0.02, silence_s=0.3)
    assert not ended_within(watching, 1, 0.5)
    del other
    assert ended_within(watching, 1, 20)


@linux_only
def test_a_rank_of_the_machine_of_rank_0_sends_heartbeats_only_if_it_writes():
    store = HashStore()
    watching = Heartbeat(store, rank=0, silence_s=0)
    other = Heartbeat(store, rank=1, beat_s=0.01)
    end = time.monotonic() + 20
    Digest().update(b"12")
    while store.get("heartbeat/1") == b"0 0" and time.monotonic() < end:
        time.sleep(0.01)
    written = store.get("heartbeat/1")
    assert not ended_within(watching, 1, 0.05)
    assert watching.num_bytes == int(written.split()[1]) == Digest.num_bytes_of_all
    assert store.get("heartbeat/1") == written
    del other


def test_the_heartbeat_of_rank_0_carries_the_progress_of_the_others():
    store = HashStore()
    keeper = Heartbeat(store, rank=0, beat_s=0.01)
    other = Heartbeat(store, rank=1, beat_s=1000)
    store.set("heartbeat/1", "1 7000")
    assert keeper.ended([1]) == []
    end = time.monotonic() + 20
    while time.monotonic() < end and other.num_bytes != Digest.num_bytes_of_all + 7000:
        assert other.ended([0]) == []
    assert other.num_bytes == Digest.num_bytes_of_all + 7000


def test_a_rank_that_has_not_started_yet_is_only_late():
    assert not ended_within(Heartbeat(HashStore(), rank=0, silence_s=0), 1, 0.05)


class Counting:
    """A store that counts the requests about other ranks."""

    def __init__(self, store):
        self.store, self.num_requests = store, 0

    def __getattr__(self, name):
        if name in ("check", "get", "multi_get"):
            self.num_requests += 1
        return getattr(self.store, name)


def test_any_number_of_ranks_is_checked_in_one_request():
    inner, ranks = HashStore(), range(1, 20)
    others = [Heartbeat(inner, rank=rank) for rank in ranks]
    store = Counting(inner)
    watching = Heartbeat(store, rank=0)
    assert watching.ended(ranks) == []
    assert store.num_requests <= 3  # who has started, as which process, and the heartbeats
    store.num_requests = 0
    assert watching.ended(ranks) == []
    assert store.num_requests == 1
    assert len(others) == len(ranks)


def test_the_heartbeats_end_with_their_object():
    before = set(threading.enumerate())
    heartbeat = Heartbeat(HashStore(), rank=0)
    [thread] = set(threading.enumerate()) - before
    assert thread.name == "accel-heartbeat"
    del heartbeat
    assert not thread.is_alive()


@linux_only
def test_a_process_of_this_machine_is_known_to_have_ended_at_once_even_as_a_zombie():
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(done, stamp().encode())
            signal.pause()
        finally:
            os._exit(0)
    try:
        process = os.read(ready, 1000).decode()
        assert not has_ended_by_stamp(process)
        os.kill(child, signal.SIGKILL)
        end = time.monotonic() + 20
        while not has_ended_by_stamp(process):
            assert time.monotonic() < end
    finally:
        os.waitpid(child, 0)
        os.close(ready)
        os.close(done)
    assert has_ended_by_stamp(process)


@linux_only
def test_a_living_process_is_alive_though_no_file_can_be_opened():
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = stamp()
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        is_taken_for_ended = has_ended_by_stamp(own, own=own)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not is_taken_for_ended


@linux_only
def test_a_process_with_the_same_pid_is_not_taken_for_an_earlier_one():
    machine, pid, begin = stamp().split("-")
    assert has_ended_by_stamp(f"{machine}-{pid}-{int(begin) - 1}")


@pytest.mark.parametrize("process", [UNKNOWN, ELSEWHERE])
def test_a_process_of_another_machine_never_counts_as_ended(process):
    assert not has_ended_by_stamp(process)
