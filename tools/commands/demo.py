"""Train the digits example on two processes, then check what it saved."""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.commands.protocol import Command
from tools.setup.presets import demonstration
from tools.setup.running import run, timed
from tools.workspace import ROOT

OUTPUT = "runs/digits"


def demo(arguments: argparse.Namespace) -> int:
    environment = demonstration().ensure()
    environ = environment.child_environ()
    train: list[str | Path] = [environment.program("accel"), "launch", "--num_processes", "2"]
    train += ["docs/examples/digits.py", "--output_dir", OUTPUT, *arguments.handed_on]
    with timed("training"):
        code = run(train, cwd=ROOT, environ=environ)
    if code != 0:
        return code
    return run([environment.python, "docs/examples/check_digits.py", OUTPUT], cwd=ROOT, environ=environ)


command = Command(help="train an image classifier on two processes and check the result", run=demo)
