"""No import cycles between modules, also in imports for the type checker or in functions."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

import grimp

from tools.workspace import read_packages


def cycle_of(graph: Mapping[str, set[str]]) -> list[str]:
    """Return a cycle, from its first module by name to that module again; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found = list(reversed(error.args[1][1:]))
        first = found.index(min(found))
        return [*found[first:], *found[: first + 1]]
    return []


def imports() -> dict[str, set[str]]:
    """Return for each module of the packages the modules of theirs that it imports, wherever it does.

    Names that a package re-exports lazily are imported for the type checker only; these imports of its modules
    do not count.
    """
    names = [package.import_name for package in read_packages().values()]
    graph, at_runtime = (
        grimp.build_graph(*names, exclude_type_checking_imports=excluded, cache_dir=None)
        for excluded in (False, True)
    )

    def counts(module: str, other: str) -> bool:
        is_inside = other.startswith(f"{module}.")
        return not is_inside or at_runtime.direct_import_exists(importer=module, imported=other)

    return {
        module: {each for each in graph.find_modules_directly_imported_by(module) if counts(module, each)}
        for module in graph.modules
    }


if __name__ == "__main__":
    cycle = " -> ".join(cycle_of(imports()))
    sys.exit(f"import cycle: {cycle}" if cycle else 0)
