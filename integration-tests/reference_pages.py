"""The tables on reference pages."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def tables_of(page):
    """Return the tables of a page: each has by the first cell of a row its other cells, by their columns."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        columns, _, *rows = (
            [cell.strip() for cell in line[1:].split(" |")][:-1] for line in table.splitlines()
        )
        yield {first: dict(zip(columns[1:], cells, strict=True)) for first, *cells in rows}


def installed_with(package):
    """Return the distributions that come with a package, as the page of dependencies names them."""
    (table,) = tables_of("docs/reference/dependencies.md")
    return {package, *re.findall(r"[\w-]+", " ".join(table[f"`{package}`"].values()))}
