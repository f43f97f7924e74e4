"""Whether a run ends with an error, for services that show it."""

from __future__ import annotations

import sys


def is_handling_error() -> bool:
    """Whether an exception is being handled: in `except`, in `finally` or at the end of a `with` block."""
    return sys.exc_info()[1] is not None


def has_ended_by_error() -> bool:
    """Whether the interpreter exits because of an unhandled exception; for use in `atexit` functions."""
    # Set before the traceback is printed. `last_value` can go when Python 3.11 is no longer supported.
    return getattr(sys, "last_exc", getattr(sys, "last_value", None)) is not None
