"""A pytest plug-in: a row for each test as soon as it has ended; tests with a row of the same run are left out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tools.gpu.results import Row, append, read
from tools.harness.device import hide_accelerators

hide_accelerators()
FILE, ABOUT = Path(os.environ["ACCEL_GPU_FILE"]), json.loads(os.environ["ACCEL_GPU_ROWS"])


def put(row: Row) -> None:
    """Add a row, with what all have in common."""
    append(FILE, {**ABOUT, **row})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what has a row."""
    done = {row["row"] for row in read(FILE) if ABOUT.items() <= row.items()}
    items[:] = [item for item in items if item.nodeid not in done]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Put a row; with pytest-xdist, in the process that hands out the tests."""
    is_end = report.failed or report.when == "call" or (report.when == "setup" and report.skipped)
    has_rows = "case" in ABOUT and report.passed  # a speed case puts its own
    if is_end and not has_rows and "PYTEST_XDIST_WORKER" not in os.environ:
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext[-600:]
        ok = None if report.skipped else report.passed
        put({"row": ABOUT.get("case", report.nodeid), "ok": ok, "why": why})
