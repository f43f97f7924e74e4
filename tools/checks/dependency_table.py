"""Check the table of each package's dependencies against its declarations; ``--update`` rewrites it.

Torch is listed without its requirements, which differ between builds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

from tools.checks.tables import if_old, run_check, with_rows
from tools.workspace import lowest_first, read_packages, requirement_name, with_siblings

PAGE = Path("docs") / "reference" / "dependencies.md"
BEGIN = "| package | packages of accel | others that it declares | others that come along |\n|-|-|-|-|\n"
"""The head of the table, which an empty line ends."""


@dataclass(frozen=True)
class Requirements:
    """The distributions that are installed with a package.

    Attributes:
        ours: Packages of this checkout, required directly or not; the lowest first.
        direct: Distributions of others that the package declares.
        through_others: Distributions that only those, or packages of this checkout, require.
    """

    ours: tuple[str, ...]
    direct: tuple[str, ...]
    through_others: tuple[str, ...]


def requirements_of(name: str) -> Requirements:
    """Return the distributions that are installed with package ``name``, without extras."""
    packages = read_packages()
    needed = with_siblings(packages, name)
    direct = packages[name].required_names - packages.keys()
    declared = [each for package in needed for each in package.dependencies]
    through = set(
        _with_their_requirements(each for each in declared if requirement_name(each) not in packages)
    )
    return Requirements(
        tuple(package.name for package in needed[:-1]), tuple(sorted(direct)), tuple(sorted(through - direct))
    )


def _with_their_requirements(declared: Iterable[str]) -> Iterator[str]:
    """Yield the distributions and, if they are installed here, their requirements."""
    waiting, seen = [Requirement(each) for each in declared], set()
    while waiting:
        current = waiting.pop()
        name = requirement_name(current.name)
        yield name
        if name == "torch" or str(current) in seen:
            continue
        seen.add(str(current))
        for text in requires(name) or ():
            required = Requirement(text)
            extras = [{"extra": extra} for extra in ("", *current.extras)]
            if required.marker is None or any(map(required.marker.evaluate, extras)):
                waiting.append(required)


def with_table(page: str) -> str:
    """Return the page with the table as the packages declare it now."""
    return with_rows(page, head=BEGIN, rows=_lines(), page=PAGE)


def problems(root: Path) -> list[str]:
    """Return the command that updates the page if it is not current."""
    return if_old(root, PAGE, with_table, what="dependencies", check="dependency_table")


def _lines() -> Iterator[str]:
    for package in lowest_first(read_packages()):
        found = requirements_of(package.name)
        columns = [f"`{package.name}`", *map(", ".join, (found.ours, found.direct, found.through_others))]
        yield f"| {' | '.join(columns)} |\n"


if __name__ == "__main__":
    sys.exit(run_check(PAGE, with_table, problems))
