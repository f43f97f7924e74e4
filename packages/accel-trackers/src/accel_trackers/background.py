"""Logging to several trackers, from a background thread each or directly, in the order of the calls."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from accel_state.errors import ConfigError, StateError
from accel_trackers.deferral import BeforeTermination, deferred
from accel_trackers.general_tracker import GeneralTracker, is_marked, runs_here
from accel_trackers.images import rendered
from accel_trackers.tracker_calls import TrackerCalls
from accel_trackers.values import frozen

OnError: TypeAlias = Literal["warn", "raise"]
"""How tracker errors are reported: ``warn`` once and raise at the end, or ``raise`` at the next call."""


def check_on_error(on_error: str) -> None:
    """Check that ``on_error`` is ``warn`` or ``raise``.

    Raises:
        ConfigError: If it is not.
    """
    if on_error not in ("warn", "raise"):
        raise ConfigError(f"`on_error` must be `warn` or `raise`, got `{on_error}`.")


class BackgroundLog:
    """Passes logged values to trackers, to each in the order of the calls, without losing any.

        log = BackgroundLog(trackers)
        log.log({"loss": loss}, step=1)
        log.close()

    Trackers with ``log_in_background = True`` have a queue and a thread each, so that a slow one delays neither the
    script nor the other trackers: `log` copies the values (tensors are cloned on their device, without waiting for
    it; figures are rendered) and returns. Other trackers, and those passed to `call_directly`, are called directly.
    At interpreter exit, also after an exception, the queues are written first; a SIGTERM during that time is deferred.
    An unhandled SIGTERM before it ends the process once the queues are written, within 20 s.

    A tracker that raises or hangs never affects other trackers, and still gets later values. With ``on_error="warn"``
    the next call warns about it, once for each tracker, and `close` raises a `TrackerError`; with ``"raise"`` the next
    `log`, `drain` or `close` raises it.

    Args:
        trackers: Started trackers, whose ``log`` this object calls from now on; it never calls ``finish``.
        capacity: Largest number of waiting calls of a tracker. Beyond it `log` waits, with one warning, instead of
            dropping values.
        stall_timeout_s: Seconds to wait for a tracker that does not finish a single call.
        on_error: ``warn`` or ``raise``.

    Raises:
        ConfigError: If ``capacity`` is less than 1 or ``on_error`` is invalid.
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
        self._calls = [
            TrackerCalls(tracker, capacity=capacity, stall_timeout_s=stall_timeout_s)
            for tracker in trackers
            if runs_here(tracker) or not is_marked(tracker.log)
        ]
        self._raises_at_once = on_error == "raise"
        self._process = os.getpid()
        self._is_closed = False
        atexit.register(self.close)
        self._has_queues = any(calls.is_queued for calls in self._calls)
        self._before_termination = BeforeTermination(self._write_queues) if self._has_queues else None

    def log(
        self,
        values: Mapping[str, Any],
        step: int | None = None,
        log_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Pass ``values`` to all trackers, or queue them.

        Args:
            values: Values by name, such as tensors of any shape and device. The caller may change them afterwards.
            step: Step of the values.
            log_kwargs: Keyword arguments for the ``log`` of each tracker, by its name.

        Raises:
            TrackerError: If a tracker failed, with ``on_error="raise"``; the other trackers got these values.
            StateError: After `close`, or in a process that was forked from the one that made this object.
        """
        self._check_usable()
        copies, kwargs = frozen(values), frozen(log_kwargs or {})
        later = rendered(copies) if self._has_queues else copies
        for calls in self._calls:
            calls.log(later if calls.is_queued else copies, step, kwargs.get(calls.tracker.name, {}))
        self._report()

    def call_directly(self, trackers: Sequence[GeneralTracker]) -> None:
        """Write the queues of these trackers; from now on `log` calls them directly.

        For trackers that the caller also calls: their calls keep one order, which matters to libraries that reject a
        step before the last one.

        Raises:
            TrackerError: If a tracker failed or hangs, with ``on_error="raise"``.
        """
        if self._is_closed or os.getpid() != self._process:
            return
        for calls in self._calls:
            if calls.tracker in trackers:
                calls.call_directly()
        self._report()

    def drain(self) -> None:
        """Wait until all values logged so far are written.

        Raises:
            TrackerError: If a tracker failed or hangs, with ``on_error="raise"``.
            StateError: After `close`, or in a process that was forked from the one that made this object.
        """
        self._check_usable()
        self._write_queues()
        self._report()

    def close(self) -> None:
        """Write the queues and end the threads. Nothing can be logged afterwards.

        Raises:
            TrackerError: If a tracker failed, or hangs.
        """
        if self._is_closed or os.getpid() != self._process:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        if self._before_termination is not None:
            self._before_termination.stop()
        with deferred(signal.SIGTERM):
            for calls in self._calls:
                calls.close()
        self._raise_errors()

    def _write_queues(self) -> None:
        for calls in self._calls:
            calls.wait()

    def _check_usable(self) -> None:
        if self._is_closed:
            raise StateError("This log is closed. Start trackers again to log more.")
        if os.getpid() != self._process:
            raise StateError("Log from the process that started the trackers, not from a fork of it.")

    def _report(self) -> None:
        if self._raises_at_once:
            self._raise_errors()
        for calls in self._calls:
            calls.warn()

    def _raise_errors(self) -> None:
        errors = [error for calls in self._calls if (error := calls.take_error()) is not None]
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"Also: {other}")
            raise errors[0]
