"""A pytest plug-in: a row for each test as soon as it has ended; tests with a row of the same run are left out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tools.gpu.results import VARIABLE, put, read
from tools.harness.device import hide_accelerators

hide_accelerators()
FILE, ABOUT = json.loads(os.environ[VARIABLE])
DONE = {
    row["row"] for row in read(Path(FILE)) if (row["run"], row.get("part")) == (ABOUT["run"], ABOUT["part"])
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has a row."""
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in DONE])
    items[:] = [item for item in items if item.nodeid not in DONE]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Put a row; with pytest-xdist, in the process that hands out the tests."""
    is_end = report.when == "call" or (report.when == "setup" and not report.passed)
    has_rows = report.passed and ABOUT["part"] == "fast"  # a speed case puts its own
    if has_rows or "PYTEST_XDIST_WORKER" in os.environ or not (is_end or report.failed):
        return
    why = "" if report.passed else report.longreprtext[-600:]
    if report.skipped and isinstance(report.longrepr, tuple):
        why = report.longrepr[2].removeprefix("Skipped: ")
    ok = None if report.skipped else report.passed
    name = ABOUT["case"] if ABOUT["part"] == "fast" else report.nodeid
    put({"case": name, "row": name, "ok": ok, "why": why, "seconds": round(report.duration, 2)})
