"""Type-check the sources of all packages and the tools, strictly."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.checks.reporting import run_tool
from tools.workspace import ROOT, read_packages


def targets(root: Path) -> list[str]:
    """Return what mypy is to read: each package's source, and the tools."""
    return [str(package.source.relative_to(root)) for package in read_packages(root).values()] + ["tools"]


if __name__ == "__main__":
    sys.exit(run_tool("mypy", "--no-error-summary", *targets(ROOT), root=ROOT))
