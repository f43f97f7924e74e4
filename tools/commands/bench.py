"""Benchmark accel against Accelerate and plain PyTorch, in one environment and one run."""

from __future__ import annotations

import argparse

from tools.commands.protocol import Command
from tools.setup.environment import Environment
from tools.setup.running import run
from tools.workspace import ROOT


def bench(arguments: argparse.Namespace) -> int:
    environment = Environment("bench").ensure()
    words = [*arguments.cases, "--rounds", str(arguments.rounds)]
    words += ["--json", arguments.json] if arguments.json else []
    command = [environment.python, "-m", "tools.bench", *words]
    return run(command, cwd=ROOT, environ=environment.child_environ())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help="files of tools/bench/cases; all of them if left out"
    )
    parser.add_argument(
        "--rounds", type=int, default=7, help="how often each variant runs, in turn (default: 7)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE as well")


command = Command(
    help="benchmark against Accelerate and plain PyTorch", run=bench, add_arguments=add_arguments
)
