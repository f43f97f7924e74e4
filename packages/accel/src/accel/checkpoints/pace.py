"""How a save behind the loop leaves the machine to the training."""

from __future__ import annotations

import threading
import time

CHUNK_BYTES = 512 * 2**10
"""So little at a time that the training gets its processor back within a fraction of a millisecond: a kernel without
preemption finishes a call before it looks who else wants to run."""
SHARE = 0.2
"""Of the time, in which the writer works while nobody waits for it."""


class Pace:
    """Work a part of the time, and all of it from the moment in which somebody waits."""

    def __init__(self, *, share: float = SHARE) -> None:
        self._rest_per_work = 1 / share - 1
        self._is_awaited = threading.Event()
        self._begun_s = time.monotonic()

    def hurry(self) -> None:
        """Rest no more: the caller has nothing else to do."""
        self._is_awaited.set()

    def rest(self) -> None:
        """Rest for what was done since the last rest; not when the program is at its end."""
        worked_s = time.monotonic() - self._begun_s
        if threading.main_thread().is_alive():
            self._is_awaited.wait(worked_s * self._rest_per_work)
        self._begun_s = time.monotonic()
