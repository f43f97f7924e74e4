"""A pytest plug-in: a row for each test as soon as it has ended; tests with a row of the same run are left out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tools.gpu.results import append


class Rows:
    """Writes rows; with pytest-xdist, in the process that distributes the tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._is_worker = hasattr(config, "workerinput")
        self._file, self._run = Path(os.environ["ACCEL_GPU_ROWS"]), os.environ["ACCEL_GPU_RUN"]
        self._done = set(json.loads(os.environ["ACCEL_GPU_DONE"]))

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in self._done])
        items[:] = [item for item in items if item.nodeid not in self._done]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        is_end = report.when == "call" or (report.when == "setup" and not report.passed)
        if self._is_worker or not (is_end or report.failed):
            return
        why = "" if report.passed else report.longreprtext[-600:]
        if report.skipped and isinstance(report.longrepr, tuple):
            why = report.longrepr[2].removeprefix("Skipped: ")
        ok = None if report.skipped else report.passed
        row = {"part": "right", "row": report.nodeid, "ok": ok, "why": why, "run": self._run}
        append(self._file, [{**row, "seconds": round(report.duration, 2)}])


def pytest_configure(config: pytest.Config) -> None:
    """Register the plug-in's object."""
    config.pluginmanager.register(Rows(config))
