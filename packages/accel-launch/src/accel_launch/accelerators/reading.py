"""Reading what drivers leave in ``/dev``, ``/proc`` and ``/sys``, and what the installed torch was built for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
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


_LINE = re.compile(r"^(cuda|hip|xpu)\b[^=]*= *(.+)$", re.MULTILINE)


def is_installed(module: str) -> bool:
    """Tell whether a package is there, without importing it."""
    return find_spec(module) is not None


def is_built_for(platform: str) -> bool:
    """Tell whether torch was built for ``cuda``, ``hip`` or ``xpu``; so it is taken to be if it does not say."""
    spec = find_spec("torch")
    folders = spec.submodule_search_locations if spec is not None else None
    return says_built_for(platform, Path(folders[0]) / "version.py") if folders else True


def says_built_for(platform: str, version_file: Path) -> bool:
    """Tell what torch's ``version.py`` says of ``platform``."""
    if not version_file.is_file():
        return True
    said = dict(_LINE.findall(version_file.read_text(encoding="utf-8")))
    return said.get(platform, "").strip() != "None" if said else True
