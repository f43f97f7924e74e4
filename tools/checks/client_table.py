"""The table of programs that others wrote: each row is a test marked ``client``; ``--update`` adds what runs recorded.

A test run records its rows in `RECORDS` (see ``integration-tests/conftest.py``), and fails if the page has others.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.checks.tables import run_check, with_rows
from tools.workspace import ROOT

PAGE = Path("docs") / "reference" / "clients.md"
RECORDS = Path("build") / "clients.json"
BEGIN = "| program | what was run | result | test |\n|-|-|-|-|\n"
"""The head of the table, which an empty line ends."""


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """The result of one test.

    Attributes:
        program: Its distribution and release, e.g. ``peft 0.19.1``.
        ran: The program, and the part of it that was run.
        result: ``equal``, or why results differ from those with Accelerate.
        test: The test's file and function.
    """

    program: str
    ran: str
    result: str
    test: str

    def shown(self) -> tuple[str, str]:
        """Return the rows of the page. A new release with the same result makes no run fail."""
        return self.ran, self.result


def rows_of(page: str) -> dict[str, Row]:
    """Return the rows of the table by their tests."""
    _, _, rest = page.partition(BEGIN)
    table, _, _ = f"\n{rest}".partition("\n\n")
    rows = (Row(*_cells(line)) for line in table.split("\n") if line)
    return {row.test: row for row in rows}


def record(rows: Iterable[Row], root: Path = ROOT) -> list[str]:
    """Add the rows of a run to those of earlier runs, and return the rows that the page lacks."""
    file = root / RECORDS
    file.parent.mkdir(parents=True, exist_ok=True)
    recorded = _recorded(root) | {row.test: row for row in rows}
    file.write_text(json.dumps([asdict(row) for row in recorded.values()], indent=1), encoding="utf-8")
    on_page = rows_of((root / PAGE).read_text(encoding="utf-8"))
    return [
        f"{PAGE} has no row `{_line(row).strip()}`. `python tools/dev.py check client_table --update` adds it."
        for row in sorted(rows)
        if row.test not in on_page or on_page[row.test].shown() != row.shown()
    ]


def with_records(page: str, root: Path = ROOT) -> str:
    """Return the page with what runs recorded, and without tests that are gone."""
    rows = rows_of(page) | _recorded(root)
    kept = rows.keys() & set(_client_tests(root))
    return with_rows(page, head=BEGIN, rows=map(_line, sorted(rows[test] for test in kept)), page=PAGE)


def problems(root: Path) -> list[str]:
    """Return the problems: tests without a row, and rows without a test."""
    shown, tests = set(rows_of((root / PAGE).read_text(encoding="utf-8"))), set(_client_tests(root))
    return [
        *(
            f"{PAGE}: `{test}` has no row. Run it, then the check with `--update`."
            for test in sorted(tests - shown)
        ),
        *(
            f"{PAGE}: `{test}` is no test marked `client`. `--update` removes the row."
            for test in sorted(shown - tests)
        ),
    ]


def _recorded(root: Path) -> dict[str, Row]:
    file = root / RECORDS
    recorded = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    return {row["test"]: Row(**row) for row in recorded}


def _client_tests(root: Path) -> Iterator[str]:
    """Yield the tests with the mark ``client``."""
    for file in sorted((root / "integration-tests").glob("test_*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and any(
                ast.unparse(decorator).startswith("pytest.mark.client(") for decorator in node.decorator_list
            ):
                yield f"{file.relative_to(root).as_posix()}::{node.name}"


def _line(row: Row) -> str:
    return f"| {row.program} | {row.ran} | {row.result} | `{row.test}` |\n"


def _cells(line: str) -> Iterator[str]:
    return (
        cell.strip().strip("`") if "::" in cell else cell.strip() for cell in line.strip("| ").split(" | ")
    )


if __name__ == "__main__":
    code = run_check(PAGE, with_records, problems)
    if "--update" in sys.argv:
        (ROOT / RECORDS).unlink(missing_ok=True)  # it is on the page
    sys.exit(code)
