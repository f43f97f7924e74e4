"""Signals that wait for logged values: deferred until a block ends, or until queues are written."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# Less than the 30 seconds after which launchers and schedulers kill.
_LONGEST_S = 20.0


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


class BeforeTermination:
    """Calls ``then`` in a thread when a SIGTERM arrives, for 20 s at most, before the signal ends the process.

    Python calls handlers of the main thread only once it leaves C code, such as a barrier that waits for a rank which
    failed; the wake-up descriptor is written at once. Nothing changes if something else handles SIGTERM or reads that
    descriptor, outside the main thread, in forks, and after `stop`.
    """

    def __init__(self, then: Callable[[], object]) -> None:
        self._then = then
        self._writer: int | None = None
        self._has_arrived = False
        self._mask = threading.local()
        is_main = threading.current_thread() is threading.main_thread()
        if os.name != "posix" or not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
            os.close(reader)
            os.close(self._writer)
            self._writer = None
            return
        signal.signal(signal.SIGTERM, self._wake)
        os.register_at_fork(
            before=self._block, after_in_parent=self._unblock, after_in_child=self._stop_in_fork
        )
        threading.Thread(
            target=self._watch, args=(reader,), name="accel-trackers-sigterm", daemon=True
        ).start()

    def stop(self) -> None:
        """Leave SIGTERM as it was."""
        if self._writer is None or threading.current_thread() is not threading.main_thread():
            return
        writer, self._writer = self._writer, None
        if signal.getsignal(signal.SIGTERM) == self._wake:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if (current := signal.set_wakeup_fd(-1)) != writer:
            signal.set_wakeup_fd(current)
        os.close(writer)

    def _block(self) -> None:
        """Block SIGTERM: until `stop`, a fork has the wake-up descriptor, and would write its own signal there."""
        self._mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask.before)

    def _stop_in_fork(self) -> None:
        self.stop()
        self._unblock()

    def _wake(self, signum: int, frame: FrameType | None) -> None:
        self._has_arrived = True
        if self._writer is not None:
            os.write(
                self._writer, bytes([signum])
            )  # something else, such as asyncio, has the wake-up descriptor

    def _watch(self, reader: int) -> None:
        with open(reader, "rb", buffering=0) as signals:
            while number := signals.read(1):
                is_ours = self._has_arrived or signal.getsignal(signal.SIGTERM) == self._wake
                if number[0] == signal.SIGTERM and is_ours:
                    break
            else:
                return
        writing = threading.Thread(target=self._then, daemon=True)
        writing.start()
        writing.join(_LONGEST_S)
        ctypes.CDLL(None).signal(int(signal.SIGTERM), None)  # Python lets only the main thread do that
        os.kill(os.getpid(), signal.SIGTERM)
