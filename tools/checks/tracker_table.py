"""Check the table of abilities in the README of accel-trackers against its classes; ``--update`` rewrites it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import getmembers, isfunction
from pathlib import Path
from typing import Any

from accel_trackers import ABILITIES, LOGGER_TYPE_TO_CLASS, GeneralTracker, ServiceTracker
from tools.checks.tables import if_old, run_check, with_rows

PAGE = Path("packages") / "accel-trackers" / "README.md"
_METHODS = [
    next(name for name in vars(protocol) if name.startswith("log_")) for protocol in ABILITIES.values()
]
BEGIN = (
    f"| tracker | {' | '.join(f'`{name}`' for name in _METHODS)} | other methods | `log` calls it |\n"
    f"{'|-' * (len(_METHODS) + 3)}|\n"
)
"""The head of the table, which an empty line ends."""


def with_table(page: str) -> str:
    """Return the page with the table as the classes have it now."""
    return with_rows(page, head=BEGIN, rows=_lines(), page=PAGE)


def problems(root: Path) -> list[str]:
    """Return the command that updates the page if it is not current."""
    return if_old(root, PAGE, with_table, what="abilities", check="tracker_table")


def _lines() -> Iterator[str]:
    for name in sorted(LOGGER_TYPE_TO_CLASS):
        cls: Any = LOGGER_TYPE_TO_CLASS[name]
        able = ["yes" if issubclass(cls, protocol) else "" for protocol in ABILITIES.values()]
        called = "through a queue" if cls.log_in_background else "directly"
        yield f"| {' | '.join([f'`{name}`', *able, ', '.join(_further(cls)), called])} |\n"


def _further(cls: type[GeneralTracker]) -> Iterator[str]:
    """Yield the public methods that neither every tracker nor a protocol has."""
    known = {*dir(ServiceTracker), *_METHODS}
    for name, _ in getmembers(cls, isfunction):
        if name not in known and not name.startswith("_"):
            yield f"`{name}`"


if __name__ == "__main__":
    sys.exit(run_check(PAGE, with_table, problems))
