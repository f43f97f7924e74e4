"""Benchmark accel against Accelerate and plain PyTorch, in one environment and one run."""

from __future__ import annotations

import argparse

from tools.setup.environment import Environment
from tools.setup.running import run
from tools.workspace import ROOT


def main(arguments: argparse.Namespace) -> int:
    environment = Environment("bench").ensure()
    command = [environment.python, "-m", "tools.bench", *arguments.cases, *arguments.handed_on]
    return run(command, cwd=ROOT, environ=environment.child_environ())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "files of tools/bench/cases; all if left out"
    parser.add_argument("cases", nargs="*", metavar="CASE", help=about)
    parser.epilog = (
        "What follows `--` goes to tools.bench: python tools/dev.py bench CASE -- --rounds 3 --json FILE"
    )
