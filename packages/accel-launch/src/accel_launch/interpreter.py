"""The Python that runs the script: ours, with the options that ours was started with."""

from __future__ import annotations

import subprocess
import sys


def interpreter_command() -> tuple[str, ...]:
    """Return the command line of this Python: after ``python -O -m accel_launch`` it ends with ``-O``."""
    # What `multiprocessing` starts its processes with; only `-u` changes no flag.
    options = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    is_unbuffered = getattr(sys.__stdout__, "write_through", False)
    return (sys.executable, *options, *(["-u"] if is_unbuffered else []))
