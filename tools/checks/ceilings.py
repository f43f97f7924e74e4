"""Lines of code: never more than the ceilings in ``pyproject.toml``, which only fall; ``--update`` lowers them."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from tools.workspace import ROOT


def problems(root: Path, *, lower: bool) -> list[str]:
    """Return the ceilings that are exceeded; lower the others if asked to."""
    project, exceeded = root / "pyproject.toml", []
    text = project.read_text(encoding="utf-8")
    for pattern, ceiling in tomllib.loads(text)["tool"]["accel"]["ceilings"].items():
        num_lines = sum(file.read_bytes().count(b"\n") for file in root.glob(pattern))
        if num_lines > ceiling:
            exceeded.append(f"{pattern}: {num_lines} lines; the ceiling is {ceiling}. Remove some.")
        elif lower:
            text = text.replace(f'"{pattern}" = {ceiling}', f'"{pattern}" = {num_lines}')
    if lower:
        project.write_text(text, encoding="utf-8")
    return exceeded


if __name__ == "__main__":
    sys.exit("\n".join(problems(ROOT, lower="--update" in sys.argv)) or 0)
