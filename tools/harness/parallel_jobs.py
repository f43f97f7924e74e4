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
    """Jobs that run when their result is requested, each once and in a separate folder, however often listed."""

    def __init__(self, jobs: Iterable[Job], *, make_folder: Callable[[], Path]) -> None:
        self._waiting = list(dict.fromkeys(jobs))
        self._make_folder = make_folder
        self._futures: dict[Job, Future[Any]] = {}

    def outcome_of(self, job: Job) -> Any:
        """Return the result of a job, or raise its exception.

        If it has not run yet, it runs now, together with the next waiting jobs: a test waits for these only, so that
        its time does not grow with the number of jobs.
        """
        if job not in self._futures:
            self._waiting.remove(job)
            self._run([job, *self._waiting[: NUM_AT_ONCE - 1]])
        return self._futures[job].result()

    def _run(self, jobs: list[Job]) -> None:
        self._waiting = [job for job in self._waiting if job not in jobs]
        folders = [self._make_folder() for _ in jobs]
        with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
            self._futures |= {
                job: pool.submit(job, folder) for job, folder in zip(jobs, folders, strict=True)
            }
