"""How a check speaks: one line per problem, exit code 1 if there is any."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path


def report(problems: Sequence[str]) -> int:
    """Print the problems; return the exit code."""
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def run_tool(module: str, *words: str, root: Path) -> int:
    """Run a third-party tool of this Python in ``root`` and return its exit code."""
    if find_spec(module) is None:
        sys.exit(
            f"`{module}` is not installed here. Run `python tools/dev.py check`, which sets everything up."
        )
    return subprocess.run([sys.executable, "-m", module, *words], cwd=root, check=False).returncode
