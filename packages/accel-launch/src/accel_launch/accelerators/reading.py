"""Reading what drivers leave in ``/dev``, ``/proc`` and ``/sys``; what cannot be read is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path


def entries(folder: Path, pattern: str) -> list[Path]:
    """Return what lies in ``folder`` under a name that matches ``pattern``, by the number in its first group."""
    found: list[tuple[int, Path]] = []
    for path in _listed(folder):
        match = re.fullmatch(pattern, path.name)
        if match is not None:
            found.append((int(match[1]), path))
    return [path for _, path in sorted(found)]


def text_of(path: Path) -> str:
    """Return the content of a file, empty if there is none for us."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def fields_of(path: Path, separator: str | None = None) -> dict[str, str]:
    """Return the lines ``NAME VALUE`` of a file as a dictionary."""
    pairs = (line.split(separator, 1) for line in text_of(path).splitlines())
    return {pair[0].strip(): pair[1].strip() for pair in pairs if len(pair) == 2}


def _listed(folder: Path) -> Iterator[Path]:
    try:
        yield from folder.iterdir()
    except OSError:
        return
