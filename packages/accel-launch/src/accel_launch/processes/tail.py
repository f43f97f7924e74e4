"""The last lines that a process wrote, and when the traceback among them began."""

from __future__ import annotations

import time
from collections import deque

_MAX_LINES = 200
_MAX_PARTIAL = 2**18
_TRACEBACK = b"Traceback (most recent call last):"


class Tail:
    """Remembers the end of a stream; a carriage return ends a line too, so a progress bar is one line."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=_MAX_LINES)
        self._partial = b""
        self.traceback_at: float | None = None

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the stream."""
        if self.traceback_at is None and _TRACEBACK in self._partial + chunk:
            self.traceback_at = time.monotonic()
        *complete, self._partial = (self._partial + chunk).split(b"\n")
        self._lines.extend(complete)
        self._partial = self._partial[-_MAX_PARTIAL:]

    def lines(self) -> tuple[str, ...]:
        """Return the lines, oldest first, as text; of a line that was written over, what stood there last."""
        whole = [*self._lines, self._partial] if self._partial else self._lines
        texts = (line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace").rstrip() for line in whole)
        return tuple(text for text in texts if text)
