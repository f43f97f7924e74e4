"""Logging to several trackers, each in an order of its own: in a thread, or at once."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from accel_state.errors import ConfigError, StateError
from accel_trackers.call_queue import CallQueue
from accel_trackers.deferral import deferred
from accel_trackers.errors import TrackerError
from accel_trackers.failures import Failures, OnError, check_on_error, raise_all
from accel_trackers.general_tracker import GeneralTracker
from accel_trackers.main_process import is_marked, runs_here
from accel_trackers.values import frozen, rendered, thawed


class _Entry(NamedTuple):
    values: dict[str, Any]
    step: int | None
    kwargs: Mapping[str, Mapping[str, Any]]


class BackgroundLog:
    """Hands logged values to trackers, to each in the order of the calls, losing none.

    Trackers with ``log_in_background = True`` have a queue and a thread each, so that the slowest delays nobody:
    `log` copies the values (tensors are cloned on their device, without waiting for it; figures are rendered) and
    returns. All others, and those given to `call_directly`, are called at once, by the caller. At the exit of
    the interpreter, after an exception too, what is queued is written first; a SIGTERM that arrives meanwhile
    takes effect after it. One that arrives before, and has no handler, ends the process without what is queued.

    What a tracker raises, or that it hangs, never affects the other trackers, and later values are handed to it all
    the same. With ``on_error="warn"`` the next call warns of it, once for each tracker, and `close` raises it as a
    `TrackerError`; with ``"raise"`` the next `log`, `drain` or `close` raises it.

    Args:
        trackers: Started trackers, whose ``log`` this object calls from now on; it never calls ``finish``.
        capacity: How many calls of a tracker may wait. Beyond it `log` does wait, and says so once: better late
            than lost.
        stall_timeout_s: How long to wait while a tracker does not finish a single call, before giving it up.
        on_error: ``warn`` or ``raise``.
    """

    def __init__(
        self,
        trackers: Sequence[GeneralTracker],
        *,
        capacity: int = 10_000,
        stall_timeout_s: float = 120.0,
        on_error: OnError = "warn",
    ) -> None:
        if capacity < 1:
            raise ConfigError(f"`capacity` must be at least 1, got {capacity}.")
        check_on_error(on_error)
        here = [tracker for tracker in trackers if runs_here(tracker) or not is_marked(tracker.log)]
        self._failures = {id(tracker): Failures() for tracker in here}
        self._direct = [tracker for tracker in here if not tracker.log_in_background]
        self._queued = [
            (tracker, CallQueue(tracker.name, capacity=capacity, stall_timeout_s=stall_timeout_s))
            for tracker in here
            if tracker.log_in_background
        ]
        self._raises_at_once = on_error == "raise"
        self._process = os.getpid()
        self._is_closed = False
        atexit.register(self.close)

    def log(
        self,
        values: Mapping[str, Any],
        step: int | None = None,
        log_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Hand ``values`` to all trackers, or queue them.

        Args:
            values: By name; may be changed by the caller at once.
            step: Where on the axis they belong.
            log_kwargs: Further arguments for ``log``, by tracker name.

        Raises:
            TrackerError: If a tracker failed, with ``on_error="raise"``; all have got these values all the same.
            StateError: After `close`, or in a process that was forked from the one that made this object.
        """
        self._check_usable()
        entry = _Entry(frozen(values), step, frozen(log_kwargs or {}))
        if self._queued:
            later = entry._replace(values=rendered(entry.values))
            for tracker, calls in self._queued:
                # Nothing that a tracker raises may end its thread.
                write = partial(self._write, tracker, later, caught=BaseException)
                self._attempt(tracker, partial(calls.put, write))
        for tracker in self._direct:
            self._write(tracker, entry, caught=Exception)
        self._tell()

    def call_directly(self, trackers: Sequence[GeneralTracker]) -> None:
        """Write what is queued for these trackers, and have `log` call them at once from now on.

        For trackers that the caller calls as well: all their calls then keep one order, which matters to libraries
        that refuse a step before the last one.

        Raises:
            TrackerError: If a tracker failed, or hangs, with ``on_error="raise"``.
        """
        if self._is_closed or os.getpid() != self._process:
            return
        for tracker, calls in [each for each in self._queued if each[0] in trackers]:
            if self._attempt(tracker, calls.close):
                self._queued.remove((tracker, calls))
                self._direct.append(tracker)
        self._tell()

    def drain(self) -> None:
        """Wait until everything logged so far is written.

        Raises:
            TrackerError: If a tracker failed, or hangs, with ``on_error="raise"``.
        """
        self._check_usable()
        for tracker, calls in self._queued:
            self._attempt(tracker, calls.wait)
        self._tell()

    def close(self) -> None:
        """Write everything that is queued and end the threads; nothing can be logged afterwards.

        Raises:
            TrackerError: If a tracker failed, or hangs.
        """
        if self._is_closed or os.getpid() != self._process:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        with deferred(signal.SIGTERM):
            for tracker, calls in self._queued:
                self._attempt(tracker, calls.close)
        raise_all(self._failures.values())

    def _check_usable(self) -> None:
        if self._is_closed:
            raise StateError("This log is closed. Start trackers again to log more.")
        if os.getpid() != self._process:
            raise StateError("Log from the process that started the trackers, not from a fork of it.")

    def _attempt(self, tracker: GeneralTracker, wait: Callable[[], None]) -> bool:
        try:
            wait()
        except TrackerError as hung:
            self._failures[id(tracker)].add(hung)
            return False
        return True

    def _write(self, tracker: GeneralTracker, entry: _Entry, *, caught: type[BaseException]) -> None:
        # Thawed anew for each: a tracker that changes its values does not change what the others see.
        kwargs = thawed(entry.kwargs).get(tracker.name, {})
        try:
            tracker.log(thawed(entry.values), step=entry.step, **kwargs)
        except caught as error:
            failure = TrackerError(
                f"The tracker `{tracker.name}` failed to log step {entry.step}: {type(error).__name__}: {error}. "
                "With `on_error='warn'` the run goes on."
            )
            failure.__cause__ = error
            self._failures[id(tracker)].add(failure)

    def _tell(self) -> None:
        if self._raises_at_once:
            raise_all(self._failures.values())
        for failures in self._failures.values():
            failures.warn()
