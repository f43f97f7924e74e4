"""``accel merge-weights`` for code: its parser and its function. Also ``python -m accel.commands.merge``."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from accel_checkpoint.merge_command import command
from accel_launch.cli import make_parser, run_command


def merge_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """Return the parser of ``accel merge-weights``, separate or added to ``subparsers``.

    The parsed arguments have `merge_command` as ``func``.
    """
    name = "accel merge-weights" if subparsers is None else "merge-weights"
    parser = make_parser(name, command, subparsers)
    parser.set_defaults(func=merge_command)
    return parser


def merge_command(args: argparse.Namespace) -> None:
    """Merge the weights that ``args`` of the parser name."""
    command.run(args)


if __name__ == "__main__":
    sys.exit(run_command("merge-weights", sys.argv[1:]))
