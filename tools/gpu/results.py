"""Rows that runs on a GPU have put: one JSON object a line, each with the run that it is of."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tools.workspace import ROOT

Row = dict[str, Any]
TRIAL = " (trial)"
"""Ends the name of a run on a CPU or with tiny models, whose rows are not stored."""
STORED = Path("docs") / "reference" / "gpu.jsonl"


def read(file: Path) -> list[Row]:
    """Return the rows of a file, none if it does not exist. Lines with ``device`` describe a run, others are rows."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return [json.loads(line) for line in text.splitlines()]


def append(file: Path, rows: Iterable[Row]) -> None:
    """Add rows to a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def merged(old: list[Row], new: list[Row]) -> list[Row]:
    """Return the new rows, and those old ones that no new one replaces, with the runs that are still named."""
    new = [row for row in new if row.get("ok", True) is not None and not row["run"].endswith(TRIAL)]
    replaced = {(row["part"], row[key]) for row in new for key in ("row", "case") if key in row}
    rows = [row for row in old if "row" in row]
    rows = [row for row in rows if not {(row["part"], row["row"]), (row["part"], row.get("case"))} & replaced]
    rows += [row for row in new if "row" in row]
    named = {row["run"] for row in rows}
    runs = {row["run"]: row for row in [*old, *new] if "device" in row and row["run"] in named}
    return [*(runs[name] for name in sorted(runs, reverse=True)), *rows]


def write(file: Path, root: Path = ROOT) -> None:
    """Merge the rows of ``file`` into the stored ones."""
    rows = merged(read(root / STORED), read(file))
    (root / STORED).unlink(missing_ok=True)
    append(root / STORED, rows)
