"""The Python that runs the script: ours, with the options that ours was started with."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def interpreter_command() -> tuple[str, ...]:
    """Return the command line of this Python: after ``python -u -m accel_launch`` it ends with ``-u``."""
    return (sys.executable, *options_before_program(sys.orig_argv, sys.argv))


def options_before_program(orig_argv: Sequence[str], argv: Sequence[str]) -> tuple[str, ...]:
    """Return what stands in ``orig_argv`` between the interpreter and the program or module that it runs.

    Args:
        orig_argv: The whole command line, as in `sys.orig_argv`.
        argv: What the program sees, as in `sys.argv`: its name first, then its arguments.
    """
    before_arguments = list(orig_argv[1 : len(orig_argv) - (len(argv) - 1)])
    for flag in ("-m", "-c"):
        if before_arguments[-2:-1] == [flag]:
            return tuple(before_arguments[:-2])
    return tuple(before_arguments[:-1])
