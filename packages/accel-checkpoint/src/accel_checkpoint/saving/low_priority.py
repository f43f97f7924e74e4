"""Work beside the training, in a thread that leaves the processors to it until somebody waits."""

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
    """Run pieces of work one after the other in a thread of low priority, while nobody waits for them.

    A trade-off: on processors that are all busy the thread gets about a thirtieth of each (niceness 15), which a
    training loop hardly feels, and gets on as slowly; on processors with time to spare it loses nothing. So that
    a save comes to its end however busy they are, whoever calls `run` does the work itself once ``patience_s``
    have gone by, with its own priority, and pauses after each piece so long that it computes a tenth of the time.
    Once `hurry` was called, or the program is at its end, it does so without pauses. The thread's own priority is
    never raised again, because Linux lets only privileged users do that. Systems without priorities of threads
    give it the usual one.

    Args:
        patience_s: Seconds from the first of the work until it is no longer left to the thread.
        clock: Gives seconds.
        pause: Waits for seconds, by default until `hurry` is called at most.
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
        self._thread = threading.Thread(target=self._serve, name="accel-giving-way", daemon=True)

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
        """Let all further work be done by its caller without pauses; from any thread, at any time."""
        self._hurry.set()

    def run(self, work: Work) -> None:
        """Do ``work`` and return when it is done; what it raises is raised here. From any thread."""
        if self._is_awaited():
            work()
        elif self._clock() < self._end_s:
            self._run_behind(work)
        else:
            begun_s = time.thread_time()
            work()
            computed_s = time.thread_time() - begun_s
            self._pause(min(computed_s * (1 / SHARE - 1), LONGEST_PAUSE_S))

    def _run_behind(self, work: Work) -> None:
        outcome: SimpleQueue[BaseException | None] = SimpleQueue()
        self._todo.put((work, outcome))
        error = outcome.get()
        if error is not None:
            raise error

    def _is_awaited(self) -> bool:
        # At its end Python lets the main thread count as dead, and then waits for those that save.
        return self._hurry.is_set() or not threading.main_thread().is_alive()

    def _serve(self) -> None:
        if sys.platform.startswith("linux"):
            own = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, own, max(NICENESS, os.getpriority(os.PRIO_PROCESS, own)))
        while (order := self._todo.get()) is not None:
            work, outcome = order
            try:
                work()
            except BaseException as error:  # noqa: BLE001 (raised where the work was asked for)
                outcome.put(error)
            else:
                outcome.put(None)


def at_once(work: Work) -> None:
    """Do ``work`` here and now."""
    work()
