"""Runs slow jobs in parallel: a launch spends much of its time waiting for processes to start and end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

Job = Callable[[Path], Any]


class ParallelJobs:
    """Jobs that run when their result is requested, each once and in a separate folder, however often listed.

    A job runs with the next one that waits: with so few, each has enough CPU to finish within its time limit.
    """

    def __init__(self, jobs: Iterable[Job], *, make_folder: Callable[[], Path]) -> None:
        self._waiting = list(dict.fromkeys(jobs))
        self._make_folder = make_folder
        self._futures: dict[Job, Future[Any]] = {}

    def outcome_of(self, job: Job) -> Any:
        """Return the result of a job, or raise its exception."""
        if job not in self._futures:
            self._waiting.remove(job)
            chosen, self._waiting = [job, *self._waiting[:1]], self._waiting[1:]
            with ThreadPoolExecutor() as pool:
                self._futures |= {each: pool.submit(each, self._make_folder()) for each in chosen}
        return self._futures[job].result()
