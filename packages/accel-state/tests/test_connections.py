"""Connections are cut at both ends, those alone that were opened meanwhile, and nothing that listens."""

from __future__ import annotations

import socket

import pytest

from accel_state.connections import opened_connections


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def connect(listener):
    near = socket.create_connection(listener.getsockname(), timeout=5)
    far, _ = listener.accept()
    far.settimeout(5)
    return near, far


def test_connections_that_were_opened_in_the_block_end_at_both_ends_and_others_do_not(listener):
    near_before, far_before = connect(listener)
    with opened_connections() as connections:
        near, far = connect(listener)
    with near, far, near_before, far_before:
        assert connections.cut() == 2
        assert near.recv(1) == far.recv(1) == b""
        near_before.send(b"x")
        assert far_before.recv(1) == b"x"


def test_a_socket_that_listens_goes_on():
    with opened_connections() as connections:
        listening = socket.create_server(("127.0.0.1", 0))
    with listening:
        assert connections.cut() == 0
        near, far = connect(listening)
        near.close()
        far.close()


def test_the_port_of_a_store_is_spared(listener):
    with opened_connections() as connections:
        near, far = connect(listener)
    with near, far:
        assert connections.cut(spare_port=listener.getsockname()[1]) == 0
        near.send(b"x")
        assert far.recv(1) == b"x"


def test_connections_that_are_closed_by_now_are_no_matter(listener):
    with opened_connections() as connections:
        near, far = connect(listener)
    near.close()
    far.close()
    assert connections.cut() == 0
