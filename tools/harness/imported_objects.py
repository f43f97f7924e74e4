"""Keeps the objects of imported libraries out of garbage collection: importing torch makes hundreds of thousands."""

from __future__ import annotations

import gc
import sys

_NUM_NEW_MODULES = 100
"""Freezing costs a collection, so it waits for a large library; every test file is a module too."""


class ImportedObjects:
    """Freezes the objects that exist whenever many modules have been imported since the last time."""

    def __init__(self) -> None:
        self._num_modules = 0

    def freeze(self) -> None:
        """Freeze all objects if many modules were imported since the last call.

        Call it between tests, when nothing but garbage is left of the earlier ones. Without it, each
        `gc.collect` in a test takes a quarter of a second once torch and its compiler are imported.
        """
        if len(sys.modules) - self._num_modules >= _NUM_NEW_MODULES:
            gc.collect()
            gc.freeze()
            self._num_modules = len(sys.modules)
