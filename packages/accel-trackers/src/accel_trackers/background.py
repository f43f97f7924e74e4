"""Logging that never waits: values go into a queue, one thread hands them to the trackers."""

from __future__ import annotations

import atexit
import os
import queue
import signal
import threading
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from accel_state.errors import ConfigError, StateError
from accel_trackers.deferral import deferred
from accel_trackers.errors import TrackerError
from accel_trackers.general_tracker import GeneralTracker
from accel_trackers.main_process import is_marked, runs_here
from accel_trackers.values import frozen, thawed


class _Entry(NamedTuple):
    trackers: tuple[GeneralTracker, ...]
    values: dict[str, Any]
    step: int | None
    kwargs: Mapping[str, Mapping[str, Any]]


class _Failure(NamedTuple):
    tracker: str
    step: int | None
    error: BaseException


# A mark is set when everything before it has been written; nothing at all ends the thread.
_Item: TypeAlias = _Entry | threading.Event | None


class BackgroundLog:
    """Hands logged values to trackers in a thread of its own, in order, losing none.

    `log` copies the values (tensors are cloned on their device, without waiting for it) and returns. What a
    tracker raises is raised again, as a `TrackerError`, by the next `log`, `drain` or `close`; the other
    trackers and later values are not affected. At the exit of the interpreter, after an exception too, what
    is queued is written first; a SIGTERM that arrives meanwhile takes effect after it. Trackers with
    ``log_in_background = False`` are called at once, by the caller; so are those given to `call_directly`.

    Args:
        trackers: Started trackers, whose ``log`` this object calls from now on; it never calls ``finish``.
        capacity: How many calls may wait. Beyond it `log` does wait, and says so once: better late than lost.
        stall_timeout_s: How long draining waits while no tracker finishes a single call, before it gives up.
    """

    def __init__(
        self, trackers: Sequence[GeneralTracker], *, capacity: int = 10_000, stall_timeout_s: float = 120.0
    ) -> None:
        if capacity < 1:
            raise ConfigError(f"`capacity` must be at least 1, got {capacity}.")
        here = [tracker for tracker in trackers if runs_here(tracker) or not is_marked(tracker.log)]
        self._direct = tuple(tracker for tracker in here if not tracker.log_in_background)
        self._trackers = tuple(tracker for tracker in here if tracker.log_in_background)
        self._queue: queue.Queue[_Item] = queue.Queue(capacity)
        self._stall_timeout_s = stall_timeout_s
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._is_closed = False
        self._has_warned = False
        self._num_written = 0
        self._failures: deque[_Failure] = deque()

    def log(
        self,
        values: Mapping[str, Any],
        step: int | None = None,
        log_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Queue ``values`` for all trackers.

        Args:
            values: By name; may be changed by the caller at once.
            step: Where on the axis they belong.
            log_kwargs: Further arguments for ``log``, by tracker name.

        Raises:
            TrackerError: If a tracker failed on an earlier call; these values are queued all the same.
            StateError: After `close`, or in a process that was forked from the one that made this object.
        """
        self._check_usable()
        entry = _Entry(self._trackers, frozen(values), step, frozen(log_kwargs or {}))
        for tracker in self._direct:
            _call(tracker, entry)
        if entry.trackers:
            self._put(entry)
        if self._failures:
            self._raise_failures()

    def call_directly(self, trackers: Sequence[GeneralTracker]) -> None:
        """Write what is queued, and have `log` call these trackers at once from now on.

        For trackers that the caller calls as well: all their calls then keep one order, which matters to libraries
        that refuse a step before the last one.

        Raises:
            TrackerError: If a tracker hangs.
        """
        taken = [tracker for tracker in self._trackers if tracker in trackers]
        if not taken or self._is_closed or os.getpid() != self._process:
            return
        self._trackers = tuple(tracker for tracker in self._trackers if tracker not in taken)
        self._direct += tuple(taken)
        self._write_all()

    def drain(self) -> None:
        """Wait until everything logged so far is written.

        Raises:
            TrackerError: If a tracker failed, or hangs.
        """
        self._check_usable()
        self._write_all()
        self._raise_failures()

    def close(self) -> None:
        """Write everything that is queued and end the thread; nothing can be logged afterwards.

        Raises:
            TrackerError: If a tracker failed, or hangs.
        """
        if self._is_closed or os.getpid() != self._process:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        with deferred(signal.SIGTERM):
            self._write_all()
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
        self._raise_failures()

    def _check_usable(self) -> None:
        if self._is_closed:
            raise StateError("This log is closed. Start trackers again to log more.")
        if os.getpid() != self._process:
            raise StateError("Log from the process that started the trackers, not from a fork of it.")

    def _put(self, item: _Item) -> None:
        if self._thread is None:
            # A daemon, for the interpreter waits for other threads before it calls what is due at exit.
            self._thread = threading.Thread(target=self._work, name="accel-trackers", daemon=True)
            self._thread.start()
            atexit.register(self.close)
        if not self._has_warned and self._queue.full():
            self._has_warned = True
            warnings.warn(
                f"{self._queue.maxsize} logged values wait for the trackers, so `log` now waits too: "
                f"{', '.join(tracker.name for tracker in self._trackers)} cannot keep up. Log less often.",
                stacklevel=4,
            )
        self._until(partial(self._try_put, item))

    def _try_put(self, item: _Item, timeout_s: float) -> bool:
        try:
            self._queue.put(item, timeout=timeout_s)
        except queue.Full:
            return False
        return True

    def _write_all(self) -> None:
        if self._thread is not None:
            mark = threading.Event()
            self._put(mark)
            self._until(mark.wait)

    def _until(self, wait: Callable[[float], bool]) -> None:
        """Call ``wait`` until it succeeds; give up when no tracker got anything done meanwhile."""
        written = self._num_written
        while not wait(self._stall_timeout_s):
            if self._num_written == written:
                raise TrackerError(
                    f"A tracker has hung for {self._stall_timeout_s:g} s, with {self._queue.qsize()} logged "
                    f"values not written: {', '.join(tracker.name for tracker in self._trackers)}."
                )
            written = self._num_written

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            self._write(item)

    def _write(self, item: _Entry) -> None:
        for tracker in item.trackers:
            try:
                _call(tracker, item)
            except BaseException as error:  # noqa: BLE001  raised again in the thread that logs
                self._failures.append(_Failure(tracker.name, item.step, error))
            self._num_written += 1

    def _raise_failures(self) -> None:
        failures: list[_Failure] = []
        while self._failures:
            failures.append(self._failures.popleft())
        if failures:
            first = failures[0]
            more = f" So did {len(failures) - 1} more calls since." if len(failures) > 1 else ""
            raise TrackerError(
                f"The tracker `{first.tracker}` failed to log step {first.step}: "
                f"{type(first.error).__name__}: {first.error}.{more}"
            ) from first.error


def _call(tracker: GeneralTracker, entry: _Entry) -> None:
    # Anew for each: a tracker that changes its values does not change what the others see.
    tracker.log(thawed(entry.values), step=entry.step, **thawed(entry.kwargs).get(tracker.name, {}))
