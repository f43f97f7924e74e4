"""The calls of one tracker, made in order by a background thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from accel_state.user_warnings import warn_user
from accel_trackers.errors import TrackerError

# A mark is set when everything before it has been done; nothing at all wakes the thread.
_Item: TypeAlias = Callable[[], None] | threading.Event | None


class CallQueue:
    """Makes calls in a thread that is started with the first one.

    Args:
        name: Name of the tracker.
        capacity: Largest number of waiting calls. Beyond it `put` waits too, and warns once.
        stall_timeout_s: Seconds until a thread that finishes no call counts as hung.
    """

    def __init__(self, name: str, *, capacity: int, stall_timeout_s: float) -> None:
        self._name = name
        self._items: queue.Queue[_Item] = queue.Queue(capacity)
        self._stall_timeout_s = stall_timeout_s
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._has_warned = False
        self._num_done = 0
        self._num_done_when_stalled: int | None = None

    def put(self, call: Callable[[], None]) -> None:
        """Queue a call, which must not raise.

        Raises:
            TrackerError: If the queue is full and the thread hangs; the call is dropped.
        """
        if self._thread is None:
            # A daemon: the interpreter joins other threads before the `atexit` functions, which end this one.
            self._thread = threading.Thread(
                target=self._work, name=f"accel-trackers-{self._name}", daemon=True
            )
            self._thread.start()
        if not self._has_warned and self._items.full():
            self._has_warned = True
            warn_user(
                f"{self._items.maxsize} logged values wait for the tracker `{self._name}`, which cannot keep up: "
                "`log` now waits too. Log less often.",
                main_process_only=False,
            )
        self._until(partial(self._try_put, call))

    def wait(self) -> None:
        """Wait until all calls queued so far are done.

        Raises:
            TrackerError: If the thread hangs.
        """
        if self._thread is not None:
            mark = threading.Event()
            self._until(partial(self._try_put, mark))
            self._until(mark.wait)

    def close(self) -> None:
        """Make all queued calls and end the thread.

        Raises:
            TrackerError: If the thread hangs.
        """
        if self._thread is None:
            return
        try:
            self.wait()
        finally:
            self._is_closed = True  # a thread that hangs now ends when it has made the other calls
            with suppress(queue.Full):
                self._items.put_nowait(None)
        self._thread.join()

    def _try_put(self, item: _Item, timeout_s: float) -> bool:
        try:
            self._items.put(item, timeout=timeout_s)
        except queue.Full:
            return False
        return True

    def _until(self, wait: Callable[[float], bool]) -> None:
        """Call ``wait`` until it succeeds or no call has finished during the timeout.

        After a hang, waits do not block until another call finishes: otherwise `log` with a full queue, `drain` and
        `close` would each take the timeout again.
        """
        num_done = self._num_done
        while not wait(0.0 if num_done == self._num_done_when_stalled else self._stall_timeout_s):
            if self._num_done == num_done:
                self._num_done_when_stalled = num_done
                raise TrackerError(
                    f"The tracker `{self._name}` has hung for {self._stall_timeout_s:g} s, with "
                    f"{self._items.qsize()} logged values not written. Check that the service "
                    "answers; with `on_error='warn'` the run continues."
                )
            num_done = self._num_done

    def _work(self) -> None:
        while not (self._is_closed and self._items.empty()):
            item = self._items.get()
            if isinstance(item, threading.Event):
                item.set()
            elif item is not None:
                item()
                self._num_done += 1
