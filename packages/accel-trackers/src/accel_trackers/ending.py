"""How a run ends, for services that show it."""

from __future__ import annotations

import sys


def is_handling_error() -> bool:
    """Whether the caller was called while an exception is handled: in `except`, `finally` or the end of a `with`."""
    return sys.exc_info()[1] is not None


def has_ended_by_error() -> bool:
    """Whether an exception that nobody handled ends the interpreter; for what is called at exit."""
    # Python sets it before it prints the traceback: `last_value` until Python 3.11, `last_exc` since.
    return getattr(sys, "last_exc", getattr(sys, "last_value", None)) is not None
