"""Runs slow jobs in parallel: a launch spends much of its time waiting for processes to start and end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

Job = Callable[[Path], Any]

NUM_AT_ONCE = 2
"""How many jobs run at the same time: few, so that each has enough CPU to finish within its time limit."""


class ParallelJobs:
    """Jobs that have run, each once and in a folder of its own, however often it was listed."""

    def __init__(self, jobs: Iterable[Job], *, make_folder: Callable[[], Path]) -> None:
        """Run all ``jobs``. An error is kept until the outcome of its job is asked for."""
        folders = {job: make_folder() for job in dict.fromkeys(jobs)}
        with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
            self._futures: dict[Job, Future[Any]] = {
                job: pool.submit(job, folder) for job, folder in folders.items()
            }

    def outcome_of(self, job: Job) -> Any:
        """Return what a job returned, or raise what it raised."""
        return self._futures[job].result()
