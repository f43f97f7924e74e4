"""Rows of runs on a GPU: one JSON object a line, each with its run; lines with ``device`` describe a run."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
TRIAL = " (trial)"
"""Ends the name of a run on a CPU or with tiny models, whose rows are not stored."""
STORED = Path("docs") / "reference" / "gpu.jsonl"
VARIABLE = "ACCEL_GPU_ROWS"
"""For a process that puts rows: their file, and what they have in common."""


def read(file: Path) -> list[Row]:
    """Return the rows of a file, none if it does not exist."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return [json.loads(line) for line in text.splitlines()]


def append(file: Path, rows: Iterable[Row]) -> None:
    """Add rows to a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def put(row: Row) -> None:
    """Add a row in a process that the driver has started."""
    file, about = json.loads(os.environ[VARIABLE])
    append(Path(file), [{**about, **row}])


def merged(old: list[Row], new: list[Row]) -> list[Row]:
    """Return the new rows, and those old ones that no new one replaces, with the runs that are still named.

    Of the plain suite, folders are counted.
    """
    new = [row for row in new if row.get("ok", True) is not None and not row["run"].endswith(TRIAL)]
    suite: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in new:
        if row.get("part") == "suite":
            suite["/".join(row["row"].split("/")[:2]), row["run"]].append(row)
    new = [row for row in new if row.get("part") != "suite"]
    for (folder, run), tests in suite.items():
        wrong = [test["row"] for test in tests if not test["ok"]]
        counts = {"num_right": len(tests) - len(wrong), "num_not_run": 0, "num_wrong": len(wrong)}
        row = {"part": "suite", "run": run, "row": folder, "ok": not wrong, "why": "; ".join(wrong[:20])}
        new.append({**row, **counts})
    replaced = {(row["part"], row[key]) for row in new for key in ("row", "case") if key in row}
    rows = [row for row in old if "row" in row]
    rows = [row for row in rows if not {(row["part"], row["row"]), (row["part"], row.get("case"))} & replaced]
    rows += [row for row in new if "row" in row]
    named = {row["run"] for row in rows}
    runs = {row["run"]: row for row in [*old, *new] if "device" in row and row["run"] in named}
    return [*(runs[name] for name in sorted(runs, reverse=True)), *rows]
