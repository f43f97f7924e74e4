"""Lines of code: never more than the ceilings in ``pyproject.toml``, which only fall; ``--update`` lowers them."""

from __future__ import annotations

import sys
import tomllib

from tools.checks.reporting import report
from tools.workspace import ROOT

if __name__ == "__main__":
    project, exceeded = ROOT / "pyproject.toml", []
    text = project.read_text(encoding="utf-8")
    for pattern, ceiling in tomllib.loads(text)["tool"]["accel"]["ceilings"].items():
        num_lines = sum(file.read_bytes().count(b"\n") for file in ROOT.glob(pattern))
        if num_lines > ceiling:
            exceeded.append(f"{pattern}: {num_lines} lines; the ceiling is {ceiling}. Remove some.")
        elif "--update" in sys.argv:
            text = text.replace(f'"{pattern}" = {ceiling}', f'"{pattern}" = {num_lines}')
    if "--update" in sys.argv:
        project.write_text(text, encoding="utf-8")
    sys.exit(report(exceeded))
