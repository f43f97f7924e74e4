from __future__ import annotations

import socket

import pytest

from accel_launch.launchers.local import held_port
from accel_state.errors import LaunchError


def test_a_free_port_is_found_and_can_still_be_listened_to_by_the_rank_that_takes_it():
    with held_port(None) as port, socket.socket() as rank_0:
        rank_0.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rank_0.bind(("", port))
        rank_0.listen()
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass


def test_no_other_process_is_given_the_port_meanwhile():
    with held_port(None) as port, socket.socket() as stranger:
        with pytest.raises(OSError, match="in use"):
            stranger.bind(("", port))


def test_a_port_in_use_is_named():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=f"`--main_process_port` is {port}"), held_port(port):
            pass


def test_where_two_sockets_cannot_be_bound_to_one_port_it_is_released_for_rank_0(monkeypatch):
    monkeypatch.setattr("accel_launch.launchers.local._SHARES_PORTS", False)
    with held_port(None) as port, socket.socket() as rank_0:
        rank_0.bind(("", port))
