"""Runs slow jobs some at a time: a launch waits a good part of its time for single processes to start and end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

Job = Callable[[Path], Any]

NUM_AT_ONCE = 2
"""How many run at the same time: few, so that none comes near its time limit for want of a core."""


class SideBySide:
    """Jobs that have been run, each in a folder of its own and each once, however often it is named."""

    def __init__(self, jobs: Iterable[Job], *, make_folder: Callable[[], Path]) -> None:
        """Run ``jobs`` to their ends; what they raise is kept for those who ask for their outcomes."""
        folders = {job: make_folder() for job in dict.fromkeys(jobs)}
        with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
            self._futures: dict[Job, Future[Any]] = {
                job: pool.submit(job, folder) for job, folder in folders.items()
            }

    def outcome_of(self, job: Job) -> Any:
        """Return what a job returned, or raise what it raised."""
        return self._futures[job].result()
