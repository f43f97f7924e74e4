"""Run the tests; the last line is pytest's own summary."""

from __future__ import annotations

import argparse
import os

from tools.commands.protocol import Command
from tools.setup.presets import development
from tools.setup.running import run
from tools.workspace import ROOT


def test(arguments: argparse.Namespace) -> int:
    environment = development().ensure()
    command = [environment.python, "-m", "pytest", *options_in_ci(), *arguments.paths, *arguments.handed_on]
    return run(command, cwd=ROOT, environ=environment.child_environ())


def options_in_ci() -> list[str]:
    """Return what pytest is told in CI, where a test that is skipped for no known reason is a failure."""
    return ["--no-unexpected-skips"] if os.environ.get("CI", "").lower() in ("1", "true") else []


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="*", help="what to test, e.g. packages/accel-ops; everything if left out"
    )
    parser.epilog = "What follows `--` goes to pytest: python tools/dev.py test -- -k gather -x"


command = Command(
    help="run the tests (after `--`: arguments for pytest)", run=test, add_arguments=add_arguments
)
