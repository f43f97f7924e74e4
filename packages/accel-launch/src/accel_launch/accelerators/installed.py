"""What the installed torch can work with, read from its files; torch itself is not imported."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

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
