"""Imported by Python at its start: `accelerate` means accel, but `accelerate.test_utils` is Accelerate's own.

The folder of these is the next entry of the path that has a `test_utils`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

import accel.drop_in  # noqa: F401

NAME = "accelerate.test_utils"


class TestUtilitiesFinder(MetaPathFinder):
    """Finds `accelerate.test_utils` and what is below it in a folder, in front of the drop-in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where the module is, None for all others."""
        if fullname == NAME:
            return PathFinder.find_spec(fullname, [str(self._folder)])
        return PathFinder.find_spec(fullname, path) if fullname.startswith(f"{NAME}.") else None


folder = next(Path(entry) for entry in sys.path if (Path(entry) / "test_utils").is_dir())
sys.meta_path.insert(0, TestUtilitiesFinder(folder))

import accelerate  # noqa: E402 -- the drop-in is on now

# The tests start scripts by their path in the package.
accelerate.__file__ = str(folder / "__init__.py")
