import contextlib
import os
import socket
import stat
from datetime import timedelta

import pytest
from torch.distributed import DistNetworkError, FileStore, HashStore, PrefixStore, TCPStore

from accel_checkpoint.ranks.heartbeat import Connection


@pytest.fixture
def server():
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def connection_to(server):
    client = TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=20))
    return Connection(PrefixStore("outer", PrefixStore("inner", client)))


def cut(port):
    """Break the connections of this process to a port, as a firewall does to those that are idle."""
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            one = socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue
        with one, contextlib.suppress(OSError):
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.getpeername()[1] == port:
                one.shutdown(socket.SHUT_RDWR)


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="finds sockets in /proc")


@needs_proc
@pytest.mark.parametrize("times", [1, 3])
def test_requests_over_a_broken_connection_are_repeated(server, times):
    connection = connection_to(server)
    connection.set("a", "1")
    for number in range(times):
        assert connection.check(["a"])
        cut(server.port)
        connection.set(f"b{number}", "2")
        cut(server.port)
        assert connection.values(["a", f"b{number}"]) == ["1", "2"]
    cut(server.port)
    connection.delete_key("a")
    assert not connection.check(["a"])


@needs_proc
def test_nothing_is_counted_twice(server):
    connection = connection_to(server)
    assert connection.add("number", 1) == 1
    cut(server.port)
    with pytest.raises(DistNetworkError):
        connection.add("number", 1)
    assert connection.add("number", 1) in (2, 3)  # the request may have arrived, but only once


@needs_proc
def test_a_value_that_was_lost_on_the_way_is_set_again(server):
    connection = connection_to(server)
    connection.check(["a"])
    connection.set("a", "1")
    server.delete_key("outer/inner/a")  # as if it had never arrived
    cut(server.port)
    assert connection.check(["a"])


def test_a_store_that_has_ended_is_an_error_at_once():
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    connection = connection_to(server)
    connection.set("a", "1")
    del server
    for _ in range(2):
        with pytest.raises(DistNetworkError, match="a new connection failed: .*refused"):
            connection.check(["a"])


@pytest.mark.parametrize("kind", ["hash", "file"])
def test_values_come_in_the_order_of_their_keys_from_any_store(tmp_path, kind):
    connection = Connection(HashStore() if kind == "hash" else FileStore(str(tmp_path / "store"), 1))
    for key in ("a", "b", "c"):
        connection.set(key, f"of {key}")
    assert connection.values(["c", "a"]) == ["of c", "of a"]
    assert connection.values([]) == []
