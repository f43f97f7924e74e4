"""The interface of a file in this folder: one object named ``command``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass


def no_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing."""


@dataclass(frozen=True)
class Command:
    """A command of ``tools/dev.py``.

    Args:
        help: One line for ``--help``.
        run: Does the work, returns the exit code. Its argument has ``handed_on`` too: the words after ``--``.
        add_arguments: Adds the command's arguments.
    """

    help: str
    run: Callable[[argparse.Namespace], int]
    add_arguments: Callable[[argparse.ArgumentParser], None] = no_arguments
