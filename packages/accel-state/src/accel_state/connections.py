"""The network connections that a process group opens, so that they can be cut while something still holds it."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_DESCRIPTORS = Path("/dev/fd")
"""Lists the open file descriptors of this process, on Linux and on macOS."""


class Connections:
    """TCP connections of this process, known by their inodes: a descriptor may be closed and used anew."""

    def __init__(self) -> None:
        self._inodes: frozenset[int] = frozenset()

    def cut(self, *, spare_port: int | None = None) -> int:
        """Shut those down that are still open, which both of their ends notice at once; return how many.

        Args:
            spare_port: Connections from or to this port stay.
        """
        num_cut = 0
        for inode, descriptor in _open_sockets().items():
            if inode in self._inodes:
                with suppress(OSError):  # closed meanwhile, or it has no peer: it listens
                    num_cut += _shut_down(descriptor, inode, spare_port)
        return num_cut


@contextmanager
def opened_connections() -> Iterator[Connections]:
    """Yield what, after the ``with`` block, stands for the connections that were opened in it.

    Where the system does not list a process's descriptors there are none.
    """
    connections = Connections()
    before = _open_sockets()
    yield connections
    connections._inodes = frozenset(_open_sockets()) - frozenset(before)


def _open_sockets() -> dict[int, int]:
    """Return the descriptor of every open socket, by inode."""
    if not _DESCRIPTORS.is_dir():
        return {}
    found: dict[int, int] = {}
    for path in _DESCRIPTORS.iterdir():
        with suppress(OSError):  # the descriptor of the listing itself is closed by now
            status = os.fstat(int(path.name))
            if stat.S_ISSOCK(status.st_mode) and status.st_ino:
                found[status.st_ino] = int(path.name)
    return found


def _shut_down(descriptor: int, inode: int, spare_port: int | None) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as own:
        if os.fstat(own.fileno()).st_ino != inode or own.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        # gloo aborts the process when the socket that it listens on fails: that one has no peer, which raises.
        if spare_port in (own.getsockname()[1], own.getpeername()[1]):
            return False
        own.shutdown(socket.SHUT_RDWR)
        return True
