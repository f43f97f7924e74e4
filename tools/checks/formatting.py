"""Check the layout that ``ruff format`` gives; ``--update`` rewrites."""

from __future__ import annotations

import sys

from tools.checks.reporting import run_tool
from tools.workspace import ROOT

if __name__ == "__main__":
    sys.exit(
        run_tool(
            "ruff", "format", *([] if "--update" in sys.argv else ["--check", "--quiet"]), ".", root=ROOT
        )
    )
