"""Spares the search for garbage what is never garbage: torch makes objects by the hundred thousand at its import."""

from __future__ import annotations

import gc
import sys

_NUM_NEW_MODULES = 100
"""A library worth the search that freezing costs; every test file is a module too."""


class Libraries:
    """What was imported so far, and does not take part in searches for garbage any more."""

    def __init__(self) -> None:
        self._num_modules = 0

    def spare(self) -> None:
        """Freeze all objects there are, should many modules have been imported since the last time.

        To be called between tests, when garbage is all that is left of the earlier ones. Without it every
        `gc.collect` of a test takes a quarter of a second once torch and its compiler are imported.
        """
        if len(sys.modules) - self._num_modules >= _NUM_NEW_MODULES:
            gc.collect()
            gc.freeze()
            self._num_modules = len(sys.modules)
