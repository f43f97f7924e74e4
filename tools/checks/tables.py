"""Tables on pages that are generated from code: updated by ``--update``, and checked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from tools.checks.reporting import report
from tools.workspace import ROOT


def with_rows(text: str, *, head: str, rows: Iterable[str], page: Path) -> str:
    """Return the text of a page with the rows of the table that begins with ``head`` and ends at an empty line.

    Raises:
        ValueError: If there is no such table.
    """
    before, found, rest = text.partition(head)
    if not found:
        raise ValueError(f"{page} has no table that begins with:\n{head}")
    _, _, after = f"\n{rest}".partition("\n\n")
    return f"{before}{head}{''.join(rows)}\n{after}"


def if_old(root: Path, page: Path, renewed: Callable[[str], str], *, what: str, check: str) -> list[str]:
    """Return the command that updates the page if the page below ``root`` is not current."""
    text = (root / page).read_text(encoding="utf-8")
    if text == renewed(text):
        return []
    return [f"{page}: the table of {what} is old. `python tools/dev.py check {check} --update` rewrites it."]


def run_check(page: Path, renewed: Callable[[str], str], problems: Callable[[Path], list[str]]) -> int:
    """Renew the page if ``--update`` asks for it, report the remaining problems, and return the exit code."""
    if "--update" in sys.argv:
        file = ROOT / page
        file.write_text(renewed(file.read_text(encoding="utf-8")), encoding="utf-8")
    return report(problems(ROOT))
