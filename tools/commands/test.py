"""Run the tests; the last line is pytest's own summary."""

from __future__ import annotations

import argparse

from tools.commands.protocol import Command
from tools.setup.presets import development
from tools.setup.running import run
from tools.workspace import ROOT


def test(arguments: argparse.Namespace) -> int:
    environment = development().ensure()
    command = [environment.python, "-m", "pytest", *arguments.paths, *arguments.handed_on]
    return run(command, cwd=ROOT, environ=environment.child_environ())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="*", help="what to test, e.g. packages/accel-ops; everything if left out"
    )
    parser.epilog = "What follows `--` goes to pytest: python tools/dev.py test -- -k gather -x"


command = Command(
    help="run the tests (after `--`: arguments for pytest)", run=test, add_arguments=add_arguments
)
