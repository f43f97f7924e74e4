"""Check the page of GPU runs against the stored rows; ``--update`` rewrites it."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tools.checks.tables import if_old, run_check
from tools.gpu.results import STORED, Row, read
from tools.workspace import ROOT

PAGE = Path("docs") / "reference" / "gpu.md"
BEGIN = "<!-- the tables begin -->\n"
RUN = ("run", "device", "driver", "torch", "python")
COLUMNS = ("plain", "bound", "accel", "accelerate")
STATES = {True: "yes", False: "**no**", None: "not run"}


def with_tables(page: str) -> str:
    """Return the page with the tables of the stored rows."""
    before, found, _ = page.partition(BEGIN)
    if not found:
        raise ValueError(f"{PAGE} has no place for the tables, after `{BEGIN.strip()}`.")
    return f"{before}{BEGIN}{''.join(_lines(read(ROOT / STORED)))}"


def problems(root: Path) -> list[str]:
    """Return the command that updates the page if it is not current."""
    return if_old(root, PAGE, with_tables, what="rows on a GPU", check="gpu_table")


def _lines(rows: list[Row]) -> Iterator[str]:
    parts: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        parts[row.get("part", "")].append(row)
    yield from _head("Runs", "run (day, commit)", *RUN[1:-1], "Python")
    for row in parts[""]:
        yield _line(*(row[name] or "–" for name in RUN))
    yield from _head(
        "Speed", "", "unit", "plain torch", *COLUMNS[1:3], "Accelerate 1.15.0", "goal", "reached", "run"
    )
    for row in parts["fast"]:
        figures = row.get("figures", {})
        numbers = [f"{figures[name]:,}" if name in figures else "–" for name in COLUMNS]
        said = "; ".join(filter(None, [row.get("note"), row["why"]]))
        state = STATES[row["ok"]] + (f": {_escaped(said)}" if said else "")
        yield _line(row["row"], row.get("unit", ""), *numbers, row.get("goal", ""), state, _commit(row))
    for part, title in (("right", "Tests of devices"), ("suite", "The plain suite next to a GPU")):
        if parts[part]:
            yield from _head(title, "", "right", "not run", "wrong", "failed", "run")
            yield from _counted(parts[part])


def _counted(rows: list[Row]) -> Iterator[str]:
    """Yield a line for each group of tests; the files of a package are one group."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[re.sub(r"^packages/([\w-]+)/.*", r"tests of `\1`", row["row"])].append(row)
    for name, those in sorted(groups.items()):
        counts = [sum(row.get(key, row["ok"] is state) for row in those)
                  for key, state in (("num_right", True), ("num_not_run", None), ("num_wrong", False))]  # fmt: skip
        reasons = "; ".join(row["why"] for row in those if row["ok"] is False)
        failed = [f"`{case}`" for case in re.findall(r"(?:^|; )(\w[\w, ]*): ", reasons)]
        yield _line(name, *counts, ", ".join(failed), ", ".join(sorted({_commit(row) for row in those})))


def _commit(row: Row) -> str:
    """Return the commit of a run, which is named by its day and commit."""
    return str(row["run"]).rpartition(" ")[2]


def _head(title: str, *cells: str) -> Iterator[str]:
    yield f"\n## {title}\n\n{_line(*cells)}{'|-' * len(cells)}|\n"


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |\n".replace("|  |", "| |")


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "/").replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(run_check(PAGE, with_tables, problems))
