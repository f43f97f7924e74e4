"""Lint everything with ruff; ``--update`` repairs what ruff can repair."""

from __future__ import annotations

import sys

from tools.checks.reporting import run_tool
from tools.workspace import ROOT

if __name__ == "__main__":
    sys.exit(
        run_tool("ruff", "check", "--quiet", *(["--fix"] if "--update" in sys.argv else []), ".", root=ROOT)
    )
