"""Background work in a low-priority thread, at normal priority once a caller waits for it."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType
from typing import Self

Work = Callable[[], object]

NICENESS = 15
PATIENCE_S = 30.0
SHARE = 0.1
LONGEST_PAUSE_S = 1.0


class LowPriorityThread:
    """Runs work items in order in a low-priority thread, as long as no caller waits for them.

    On busy processors the thread gets about a thirtieth of each (niceness 15). Training hardly slows down, but the
    work is slow too. On idle processors the low priority costs nothing.

    To finish even on busy processors, `run` switches to its caller's thread after ``patience_s``. It then pauses
    after each item, so that it computes a tenth of the time. After `hurry`, or at the end of the program, it no longer
    pauses. The thread never gets its priority back, because Linux allows only privileged users to raise it. Where
    threads have no priority of their own, the thread runs at normal priority.

    Args:
        patience_s: How long the thread does the work, in seconds from the start.
        clock: Returns the time in seconds.
        pause: Sleeps for the given seconds; by default `hurry` ends the sleep.
    """

    def __init__(
        self,
        *,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._patience_s, self._clock = patience_s, clock
        self._end_s = float("inf")
        self._hurry = threading.Event()
        self._pause = self._hurry.wait if pause is None else pause
        self._todo: SimpleQueue[tuple[Work, SimpleQueue[BaseException | None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="accel-low-priority", daemon=True)

    def __enter__(self) -> Self:
        self._end_s = self._clock() + self._patience_s
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._todo.put(None)
        self._thread.join()

    def hurry(self) -> None:
        """Run all further work in the caller's thread without pauses. Can be called from any thread, at any time."""
        self._hurry.set()

    def run(self, work: Work) -> None:
        """Run ``work`` to its end and raise what it raises. Can be called from any thread."""
        if self._is_awaited():
            work()
        elif self._clock() < self._end_s:
            self._run_in_thread(work)
        else:
            begun_s = time.thread_time()
            work()
            computed_s = time.thread_time() - begun_s
            self._pause(min(computed_s * (1 / SHARE - 1), LONGEST_PAUSE_S))

    def _run_in_thread(self, work: Work) -> None:
        outcome: SimpleQueue[BaseException | None] = SimpleQueue()
        self._todo.put((work, outcome))
        error = outcome.get()
        if error is not None:
            raise error

    def _is_awaited(self) -> bool:
        # At exit the main thread counts as dead before Python joins the saving threads.
        return self._hurry.is_set() or not threading.main_thread().is_alive()

    def _serve(self) -> None:
        if sys.platform.startswith("linux"):
            own = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, own, max(NICENESS, os.getpriority(os.PRIO_PROCESS, own)))
        while (item := self._todo.get()) is not None:
            work, outcome = item
            try:
                work()
            except BaseException as error:  # noqa: BLE001 (raised in `run`)
                outcome.put(error)
            else:
                outcome.put(None)


def run_inline(work: Work) -> None:
    """Run ``work`` in the caller's thread, at normal priority."""
    work()
