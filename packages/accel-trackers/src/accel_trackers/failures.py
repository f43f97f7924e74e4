"""Errors of trackers, kept until they are reported."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Literal, TypeAlias

from accel_state.errors import ConfigError
from accel_state.user_warnings import warn_user
from accel_trackers.errors import TrackerError

OnError: TypeAlias = Literal["warn", "raise"]
"""How tracker errors are reported: ``warn`` once and raise at the end, or ``raise`` at the next call."""


class Failures:
    """Failed calls of one tracker: the first error and the number of calls. Any thread may add to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: TrackerError | None = None
        self._num_calls = 0
        self._has_warned = False

    def add(self, error: TrackerError) -> None:
        """Record a failed call."""
        with self._lock:
            self._first = self._first or error
            self._num_calls += 1

    def warn(self) -> None:
        """Warn of the first error, once; `taken` still returns it."""
        if self._first is not None and not self._has_warned:
            self._has_warned = True
            warn_user(
                f"{self._first} The run continues, and this error is raised when the trackers are closed.",
                main_process_only=False,
            )

    def taken(self) -> TrackerError | None:
        """Return the error to raise, None if no call failed, and reset the record."""
        with self._lock:
            first, num_calls = self._first, self._num_calls
            self._first, self._num_calls = None, 0
        if first is not None and num_calls > 1:
            first.args = (f"{first} So did {num_calls - 1} more calls since.",)
        return first


def check_on_error(on_error: str) -> None:
    """Check that ``on_error`` is ``warn`` or ``raise``.

    Raises:
        ConfigError: If it is not.
    """
    if on_error not in ("warn", "raise"):
        raise ConfigError(f"`on_error` must be `warn` or `raise`, got `{on_error}`.")


def raise_all(failures: Iterable[Failures]) -> None:
    """Raise the first error, if any, with those of other trackers as its notes.

    Raises:
        TrackerError: If a tracker failed.
    """
    errors = [error for each in failures if (error := each.taken()) is not None]
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"Also: {other}")
        raise errors[0]
