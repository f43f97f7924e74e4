from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[Mapping[str, str]], Path]:
    """Build a folder that stands for ``/``: files by path, with their text."""

    def build(files: Mapping[str, str] | list[str]) -> Path:
        for name in files:
            path = tmp_path / "root" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[name] if isinstance(files, Mapping) else "")
        return tmp_path / "root"

    return build
