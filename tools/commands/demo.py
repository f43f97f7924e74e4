"""Train the digits example on the devices of this machine, then check the saved weights."""

from __future__ import annotations

import argparse

from tools.setup.environment import Environment
from tools.setup.running import run, timed
from tools.workspace import ROOT

OUTPUT = "runs/digits"
SEES_AN_ACCELERATOR = "import sys, torch; sys.exit(not torch.accelerator.is_available())"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "What follows `--` goes to the example: python tools/dev.py demo -- --epochs 3"


def main(arguments: argparse.Namespace) -> int:
    environment = Environment("demo").ensure()
    environ = environment.child_environ()
    has_none = run([environment.python, "-c", SEES_AN_ACCELERATOR], cwd=ROOT, environ=environ)
    on_the_cpu = ["--cpu", "--num_processes", "2"] if has_none else []  # else a process for each device
    train = [environment.program("accel"), "launch", *on_the_cpu, "docs/examples/digits.py"]
    with timed("training"):
        code = run([*train, "--output_dir", OUTPUT, *arguments.handed_on], cwd=ROOT, environ=environ)
    check = [environment.python, "docs/examples/check_digits.py", OUTPUT]
    return code or run(check, cwd=ROOT, environ=environ)
