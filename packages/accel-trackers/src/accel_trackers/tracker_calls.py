"""The calls of one tracker's ``log``: made directly, or in order by a background thread, and their errors."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from accel_state.user_warnings import warn_user
from accel_trackers.errors import TrackerError
from accel_trackers.general_tracker import GeneralTracker
from accel_trackers.values import thawed


class TrackerCalls:
    """Calls ``log`` of a tracker; with ``log_in_background``, in a thread that is started with the first call.

    An error of the tracker, or that it hangs, is kept until `warn` or `take_error`; no other method raises it.

    Args:
        tracker: The tracker.
        capacity: Largest number of waiting calls. Beyond it `log` waits too, and warns once.
        stall_timeout_s: Seconds until a thread that finishes no call counts as hung.
    """

    def __init__(self, tracker: GeneralTracker, *, capacity: int, stall_timeout_s: float) -> None:
        self.tracker = tracker
        self.is_queued = tracker.log_in_background
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._capacity, self._free = capacity, threading.Semaphore(capacity)
        self._stall_timeout_s = stall_timeout_s
        self._thread: threading.Thread | None = None
        self._has_warned_of_waiting = False
        self._num_done = 0
        self._num_done_when_stalled: int | None = None
        self._errors_lock = threading.Lock()
        self._first_error: TrackerError | None = None
        self._num_errors = 0
        self._has_warned_of_error = False

    def log(self, values: Mapping[str, Any], step: int | None, kwargs: Mapping[str, Any]) -> None:
        """Make a call with frozen arguments, or queue it; if the queue is full and the thread hangs, drop it."""
        make = partial(self._make, values, step, kwargs)
        if not self.is_queued:
            make(caught=Exception)
            return
        if self._thread is None:
            # A daemon: the interpreter joins other threads before the `atexit` functions, which end this one.
            name = f"accel-trackers-{self.tracker.name}"
            self._thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._thread.start()
        if not self._free.acquire(blocking=False):
            if not self._has_warned_of_waiting:
                self._has_warned_of_waiting = True
                warn_user(
                    f"{self._capacity} logged values wait for the tracker `{self.tracker.name}`, which cannot keep "
                    "up: `log` now waits too. Log less often.",
                    main_process_only=False,
                )
            if not self._until(lambda timeout_s: self._free.acquire(timeout=timeout_s)):
                return
        self._queue.put(partial(self._make_queued, make))

    def wait(self) -> bool:
        """Wait until all calls queued so far are made; return False if the thread hangs."""
        if self._thread is None:
            return True
        mark = threading.Event()
        self._queue.put(mark.set)
        return self._until(mark.wait)

    def call_directly(self) -> None:
        """Make the queued calls; from now on, unless the thread hangs, `log` makes its call before it returns."""
        if self.is_queued and self.wait():
            self.close()
            self.is_queued = False

    def close(self) -> None:
        """Make the queued calls and end the thread; one that hangs ends when it has made them."""
        if self._thread is None:
            return
        try:
            has_made_all = self.wait()
        finally:
            self._queue.put(None)
        if has_made_all:
            self._thread.join()
            self._thread = None

    def warn(self) -> None:
        """Warn of the first error, once; `take_error` still returns it."""
        if self._first_error is not None and not self._has_warned_of_error:
            self._has_warned_of_error = True
            warn_user(
                f"{self._first_error} The run continues, and this error is raised when the trackers are closed.",
                main_process_only=False,
            )

    def take_error(self) -> TrackerError | None:
        """Return the error to raise, None if no call failed, and reset the record."""
        with self._errors_lock:
            first, num_errors = self._first_error, self._num_errors
            self._first_error, self._num_errors = None, 0
        if first is not None and num_errors > 1:
            first.args = (f"{first} So did {num_errors - 1} more calls since.",)
        return first

    def _add(self, error: TrackerError) -> None:
        with self._errors_lock:
            self._first_error = self._first_error or error
            self._num_errors += 1

    def _until(self, wait: Callable[[float], bool]) -> bool:
        """Call ``wait`` until it succeeds; return False, with an error kept, if no call finished during the timeout.

        After a hang, waits do not block until another call finishes: otherwise `log` with a full queue, `wait` and
        `close` would each take the timeout again.
        """
        num_done = self._num_done
        while not wait(0.0 if num_done == self._num_done_when_stalled else self._stall_timeout_s):
            if self._num_done == num_done:
                self._num_done_when_stalled = num_done
                self._add(
                    TrackerError(
                        f"The tracker `{self.tracker.name}` has hung for {self._stall_timeout_s:g} s, with "
                        f"{self._queue.qsize()} logged values not written. Check that the service "
                        "answers; with `on_error='warn'` the run continues."
                    )
                )
                return False
            num_done = self._num_done
        return True

    def _work(self) -> None:
        while (action := self._queue.get()) is not None:
            action()

    def _make_queued(self, make: Callable[..., None]) -> None:
        self._free.release()
        # Also SystemExit and KeyboardInterrupt: they would end the thread, and `wait` would report it as hung.
        make(caught=BaseException)
        self._num_done += 1

    def _make(
        self,
        values: Mapping[str, Any],
        step: int | None,
        kwargs: Mapping[str, Any],
        *,
        caught: type[BaseException],
    ) -> None:
        try:
            # Thawed for each tracker, so that one that changes its values does not affect the other trackers.
            self.tracker.log(thawed(values), step=step, **thawed(kwargs))
        except caught as error:
            failure = TrackerError(
                f"The tracker `{self.tracker.name}` failed to log step {step}: {type(error).__name__}: {error}. "
                "With `on_error='warn'` the run continues."
            )
            failure.__cause__ = error
            self._add(failure)
