"""Check each package's public surface against ``packages/<name>/surface.txt``; ``--update`` rewrites them."""

from __future__ import annotations

import difflib
import importlib
import sys
from pathlib import Path

from tools.checks.describe import describe_package
from tools.checks.reporting import report
from tools.workspace import ROOT, Package, read_packages

HEADER = (
    "# The public surface of {name}. Written by `python tools/dev.py check surface --update`; do not edit.\n"
)


def present_surface(package: Package) -> str:
    """Return the surface of ``package`` now."""
    module = importlib.import_module(package.import_name)
    return HEADER.format(name=package.name) + "".join(f"{line}\n" for line in describe_package(module))


def differences(package: Package) -> list[str]:
    """Return a diff between the snapshot and the present surface, empty if they agree."""
    file = package.folder / "surface.txt"
    recorded = file.read_text(encoding="utf-8") if file.is_file() else ""
    try:
        present = present_surface(package)
    except (ImportError, AttributeError) as error:
        return [f"{package.name}: a public name cannot be had: {error}"]
    lines = recorded.splitlines(), present.splitlines()
    return list(difflib.unified_diff(*lines, f"{package.name} recorded", "present", n=1, lineterm=""))


def update(root: Path) -> None:
    """Write the snapshot of every package."""
    for package in read_packages(root).values():
        (package.folder / "surface.txt").write_text(present_surface(package), encoding="utf-8")


def problems(root: Path) -> list[str]:
    """Return the differences of all packages, with the command that updates them."""
    found = [line for package in read_packages(root).values() for line in differences(package)]
    if found:
        found.append(
            "If this is meant: `python tools/dev.py check surface --update`, and a line in the changelog."
        )
    return found


if __name__ == "__main__":
    if "--update" in sys.argv:
        update(ROOT)
    sys.exit(report(problems(ROOT)))
