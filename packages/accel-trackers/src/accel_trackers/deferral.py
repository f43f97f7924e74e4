"""A signal that waits until something is done."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def deferred(signum: int) -> Iterator[None]:
    """Let a signal take effect after the block, as it would have without; in other threads do nothing.

    Launchers send SIGTERM to all processes of a run as soon as one has failed: also to the one that is
    writing down why.
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
