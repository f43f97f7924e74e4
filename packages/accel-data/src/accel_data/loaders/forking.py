"""What goes wrong when loader workers are forked, and is prevented here."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.util import register_after_fork
from types import FrameType


@contextmanager
def forking_workers() -> Iterator[None]:
    """Start loader workers in the body: neither a Ctrl-C is lost nor does a worker hang in garbage it inherited."""
    with delayed_interrupt(), garbage_left_to_parent():
        yield


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


@contextmanager
def garbage_left_to_parent() -> Iterator[None]:
    """Let processes that are forked in the body collect their own garbage only, not what they inherit.

    A fork copies no threads, so a finalizer that waits for one never returns there. That of a gloo process group does:
    `destroy_process_group` leaves the group to the garbage collector where a cycle refers to it, as a model in
    `DistributedDataParallel` does.
    """
    start = _Start()
    register_after_fork(start, lambda _: gc.freeze())
    yield


class _Start:
    """`multiprocessing` calls what is registered with an object in each process forked while the object lives."""
