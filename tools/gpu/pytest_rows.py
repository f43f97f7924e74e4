"""A pytest plug-in: a row for each test as soon as it has ended; tests with a row of the same run are left out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tools.gpu.results import append

FILE, RUN, DONE = json.loads(os.environ["ACCEL_GPU_ROWS"])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has a row."""
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in DONE])
    items[:] = [item for item in items if item.nodeid not in DONE]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write a row; with pytest-xdist, in the process that hands out the tests."""
    is_end = report.when == "call" or (report.when == "setup" and not report.passed)
    if "PYTEST_XDIST_WORKER" in os.environ or not (is_end or report.failed):
        return
    why = "" if report.passed else report.longreprtext[-600:]
    if report.skipped and isinstance(report.longrepr, tuple):
        why = report.longrepr[2].removeprefix("Skipped: ")
    ok = None if report.skipped else report.passed
    row = {"part": "right", "row": report.nodeid, "ok": ok, "why": why, "run": RUN}
    append(Path(FILE), [{**row, "seconds": round(report.duration, 2)}])
