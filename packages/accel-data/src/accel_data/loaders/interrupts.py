"""Ctrl-C while loader workers are forked."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def delayed_interrupt() -> Iterator[None]:
    """Handle a SIGINT that arrives in the body after it.

    Around a fork, Python calls functions of `logging`, `random` and others, and drops what is raised in them: the
    `KeyboardInterrupt` would be lost, and the process go on. Workers that are forked in the body ignore SIGINT; torch
    ends them with their process.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _, frame: arrived.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if arrived:
            handler(signal.SIGINT, arrived[-1])
