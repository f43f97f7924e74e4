"""A progress bar for long saves and merges, which the file writers advance."""

from __future__ import annotations

import math
import threading
import time
from types import TracebackType
from typing import Any, Self

from accel_state.availability import is_tqdm_available

QUIET_S = 3.0
"""Shorter work shows no progress bar."""


class Progress:
    """Shows how many bytes this process has written, once a caller has waited for a few seconds.

    Args:
        label: Text before the number.
        is_shown: Whether this process shows the bar.
        total: Number of bytes in the end, if known.
        quiet_s: How long a caller waits before the bar appears; with 0 it appears at once.
    """

    def __init__(
        self, label: str, *, is_shown: bool = True, total: int | None = None, quiet_s: float = QUIET_S
    ) -> None:
        self._label, self._total, self._quiet_s = label, total, quiet_s
        self._is_shown = is_shown and is_tqdm_available()
        self._begin_s = math.inf
        self._num_bytes = 0
        self._bar: Any = None
        self._lock = threading.Lock()  # several files are written at a time

    def begin_waiting(self) -> None:
        """Count the quiet time from now on, if a caller has not waited before."""
        if self._is_shown:
            self._begin_s = min(self._begin_s, time.monotonic() + self._quiet_s)

    def advance(self, num_bytes: int) -> None:
        """Add bytes that have been written."""
        with self._lock:
            self._num_bytes += num_bytes
            if self._bar is None and time.monotonic() >= self._begin_s:
                from tqdm.auto import tqdm

                self._bar = tqdm(
                    desc=self._label, total=self._total, unit="B", unit_scale=True, unit_divisor=1024
                )
            if self._bar is not None:
                self._bar.update(min(self._num_bytes, self._total or math.inf) - self._bar.n)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
