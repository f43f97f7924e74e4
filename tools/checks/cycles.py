"""No import cycles, also in imports for the type checker or in functions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tools.checks.reporting import report
from tools.workspace import ROOT, read_packages

_PROGRAM = """
import json, sys, grimp
graphs = [
    grimp.build_graph(*sys.argv[1:], exclude_type_checking_imports=excluded, cache_dir=None)
    for excluded in (False, True)
]
print(json.dumps([{m: sorted(graph.find_modules_directly_imported_by(m)) for m in graph.modules} for graph in graphs]))
"""


def imports(root: Path) -> dict[str, set[str]]:
    """Return for each module of the packages the modules of the packages that it imports, wherever it does.

    Names that a package re-exports lazily are imported for the type checker only; these imports of its modules
    do not count.
    """
    packages = read_packages(root).values()
    names = [package.import_name for package in packages]
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(package.folder / "src") for package in packages),
    }
    # In a separate Python, which has imported none of them from elsewhere.
    words = [sys.executable, "-c", _PROGRAM, *names]
    done = subprocess.run(words, cwd=root, env=environ, capture_output=True, text=True, check=True)
    all_imports, at_runtime = (
        {key: set(value) for key, value in one.items()} for one in json.loads(done.stdout)
    )
    return {
        module: {
            one for one in imported if not one.startswith(f"{module}.") or one in at_runtime.get(module, ())
        }
        for module, imported in all_imports.items()
    }


def cycles(graph: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """Yield cycles, each from its first module by name, until there is none without an import of theirs."""
    left = {module: set(imported) for module, imported in graph.items()}
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            found = list(reversed(error.args[1][1:]))
            first = found.index(min(found))
            cycle = found[first:] + found[:first]
            yield cycle
            left[cycle[0]].discard(cycle[1 % len(cycle)])
        else:
            return


def problems(root: Path) -> list[str]:
    """Return the import cycles in the packages of ``root``."""
    return [f"import cycle: {' -> '.join([*cycle, cycle[0]])}" for cycle in sorted(cycles(imports(root)))]


if __name__ == "__main__":
    sys.exit(report(problems(ROOT)))
