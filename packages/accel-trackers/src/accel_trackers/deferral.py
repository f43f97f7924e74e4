"""Deferred signals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def deferred(signum: int) -> Iterator[None]:
    """Defer a signal until the end of the block, then deliver it to its handler. Outside the main thread do nothing.

    Launchers send SIGTERM to all processes of a run as soon as one has failed, also to the one that is still writing
    what it logged before it failed. Only the main thread can set handlers, and a handler that was not set from Python
    could not be restored.
    """
    before = signal.getsignal(signum)
    if threading.current_thread() is not threading.main_thread() or before in (None, signal.SIG_IGN):
        yield
        return
    arrived: list[int] = []
    signal.signal(signum, lambda number, frame: arrived.append(number))
    try:
        yield
    finally:
        signal.signal(signum, before)
        if arrived:
            os.kill(os.getpid(), signum)
