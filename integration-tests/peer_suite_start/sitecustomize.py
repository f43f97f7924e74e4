"""Imported by Python at its start: `accelerate` means accel, but `accelerate.test_utils` is Accelerate's own.

The folder of these is the next entry of the path that has a `test_utils`.
"""

import sys
from importlib.machinery import PathFinder
from pathlib import Path

import accel.drop_in  # noqa: F401

NAME = "accelerate.test_utils"
FOLDER = next(entry for entry in sys.path if Path(entry, "test_utils").is_dir())


class OwnTestUtilities:
    """Finds them in front of the drop-in."""

    @staticmethod
    def find_spec(fullname, path=None, target=None):
        if fullname == NAME:
            return PathFinder.find_spec(fullname, [FOLDER])
        return PathFinder.find_spec(fullname, path) if fullname.startswith(f"{NAME}.") else None


sys.meta_path.insert(0, OwnTestUtilities)

import accelerate  # noqa: E402 -- the drop-in is on now

# The tests start scripts by their path in the package.
accelerate.__file__ = str(Path(FOLDER, "__init__.py"))
