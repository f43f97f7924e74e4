"""Rows and, with ``device``, runs on a GPU, one JSON object a line, and the page of stored ones, which it checks."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.workspace import ROOT

Row = dict[str, Any]
TRIAL = " (trial)"
"""Ends the name of a run on a CPU or with tiny models, whose rows are not stored."""
STORED = ROOT / "docs" / "reference" / "gpu.jsonl"
PAGE = ROOT / "docs" / "reference" / "gpu.md"
BEGIN = "<!-- the tables begin -->\n"
RUN = ("run", "device", "driver", "torch", "python")
COLUMNS = ("plain", "bound", "accel", "accelerate")
STATES = {True: "yes", False: "**no**", None: "not run"}


def read(file: Path) -> list[Row]:
    """Return the rows of a file, none if it does not exist."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return [json.loads(line) for line in text.splitlines()]


def append(file: Path, *rows: Row) -> None:
    """Add rows to a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def merged(old: list[Row], new: list[Row]) -> list[Row]:
    """Return the stored rows and new ones, which replace those of their case or folder, with the runs they name.

    The tests of a folder become one row. What could not be measured replaces nothing.
    """
    cases: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in new:
        if "part" in row and row["ok"] is not None and not row["run"].endswith(TRIAL):
            cases[row["part"], row["run"], row.get("case", "/".join(row["row"].split("/")[:2]))].append(row)
    ran: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for (part, run, case), rows in cases.items():
        failed = [row["row"] for row in rows if not row["ok"]]
        counts = {"right": len(rows) - len(failed), "wrong": len(failed), "not_run": 0, "failed": failed}
        why = "; ".join(row["why"] for row in rows if not row["ok"])[:4000]
        counted = {"part": part, "run": run, "row": case, "ok": not failed, **counts, "why": why}
        ran[part, case] += rows if part == "fast" else [counted]
    kept = [row for row in old if "part" in row and (row["part"], row.get("case", row["row"])) not in ran]
    all_rows = [*kept, *(row for rows in ran.values() for row in rows)]
    runs = {row["run"]: row for row in [*old, *new] if "device" in row}
    return [*(runs[name] for name in sorted({row["run"] for row in all_rows}, reverse=True)), *all_rows]


def tables(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the page that show the rows."""
    runs = [[row[name] or "–" for name in RUN] for row in rows if "device" in row]
    yield from _table("Runs", ("run (day, commit)", *RUN[1:-1], "Python"), runs)
    head = ("", "unit", "plain torch", *COLUMNS[1:3], "Accelerate 1.15.0", "goal", "reached", "run")
    yield from _table("Speed", head, [_speed(row) for row in rows if row.get("part") == "fast"])
    for part, title in (("right", "Tests of devices"), ("suite", "The plain suite next to a GPU")):
        if tests := sorted(_counts(row) for row in rows if row.get("part") == part):
            yield from _table(title, ("", "right", "not run", "wrong", "failed", "run"), tests)


def _speed(row: Row) -> list[Any]:
    figures = row.get("figures", {})
    numbers = [f"{figures[name]:,}" if name in figures else "–" for name in COLUMNS]
    said = " ".join("; ".join(filter(None, [row.get("note"), row["why"]])).split())
    state = ": ".join(filter(None, [STATES[row["ok"]], said.replace("|", "/").replace("<", "&lt;")]))
    return [row["row"], row.get("unit", ""), *numbers, row.get("goal", ""), state, row["run"].split()[-1]]


def _counts(row: Row) -> list[Any]:
    failed = ", ".join(f"`{name}`" for name in row["failed"])
    return [row["row"], row["right"], row["not_run"], row["wrong"], failed, row["run"].split()[-1]]


def _table(title: str, head: Sequence[str], rows: Iterable[Iterable[Any]]) -> Iterator[str]:
    yield f"\n## {title}\n\n"
    for number, cells in enumerate((head, *rows)):
        line = f"| {' | '.join(map(str, cells))} |\n".replace("|  |", "| |")
        yield line if number else f"{line}{'|-' * len(head)}|\n"


def update_page(*, is_written: bool) -> int:
    """Write the page of the stored rows, or report that it is old; return the exit code."""
    text = PAGE.read_text(encoding="utf-8")
    renewed = f"{text.partition(BEGIN)[0]}{BEGIN}{''.join(tables(read(STORED)))}"
    if is_written:
        PAGE.write_text(renewed, encoding="utf-8")
    elif text != renewed:
        print("docs/reference/gpu.md is old. `python tools/dev.py check gpu_table --update` rewrites it.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(update_page(is_written="--update" in sys.argv))
