"""What forks write, passed on to `sys.stdout` and `sys.stderr` of the process that was forked.

In a notebook these are no descriptors: they lead to the cell that runs.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Callable
from typing import TextIO

_CHUNK = 65536


class Relay:
    """A pipe from the forks' descriptor ``target`` to a text stream of this process; None for one that is closed."""

    def __init__(self, target: int, stream: Callable[[], TextIO | None]) -> None:
        self._target = target
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)

    def fileno(self) -> int:
        """Return the descriptor that there is something to read from."""
        return self._reader

    def take_over(self) -> TextIO:
        """In the fork: let the target lead to the pipe, and return a stream to write to it."""
        os.dup2(self._writer, self._target)
        os.close(self._writer)
        os.close(self._reader)
        return open(
            self._target, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
        )

    def started(self) -> None:
        """Leave the writing end to the fork."""
        os.close(self._writer)

    def pump(self) -> bool:
        """Pass on what is there without waiting for more; return whether there may be more to come."""
        try:
            chunk = os.read(self._reader, _CHUNK)
        except BlockingIOError:
            return False
        text, stream = self._decoder.decode(chunk, final=not chunk), self._stream()
        if text and stream is not None:
            stream.write(text)
            stream.flush()
        return bool(chunk)

    def close(self) -> None:
        """Read no more; who writes still finds the pipe broken."""
        os.close(self._reader)


def relays_of_this_process() -> tuple[Relay, Relay]:
    """Return the way to the standard output and the one to the standard error."""
    return Relay(1, lambda: sys.stdout), Relay(2, lambda: sys.stderr)


def take_over_streams(stdout: Relay, stderr: Relay) -> None:
    """In the fork: write to the relays, and read nothing."""
    sys.stdout, sys.stderr = stdout.take_over(), stderr.take_over()
