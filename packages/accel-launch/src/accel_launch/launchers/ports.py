"""The port at which the ranks meet: checked, or found and held until they take it."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from accel_state.errors import LaunchError

# Elsewhere two sockets cannot be bound to one port, unless both ask for more than torch's store does.
_SHARES_PORTS = sys.platform == "linux"


@contextmanager
def held_port(port: int | None, *, asked_with: str = "--main_process_port") -> Iterator[int]:
    """Yield ``port``, or a free one for None, which nobody else is given meanwhile.

    On Linux it is bound but not listened to, and marked as reusable, so that rank 0 can still take it. Elsewhere it
    is only found, and somebody else may take it before rank 0 does.

    Raises:
        LaunchError: If ``port`` is taken; it names what it was ``asked_with``.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind(("", port or 0))
        except OSError as error:
            raise LaunchError(
                f"`{asked_with}` is {port}, but that port cannot be used: {error.strerror}. "
                "Choose another, or 0 for one that is free."
            ) from error
        found: int = holder.getsockname()[1]
        if _SHARES_PORTS:
            yield found
            return
    yield found


def free_port() -> int:
    """Return a port that nobody listens to at the moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
