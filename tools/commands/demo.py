"""Train the digits example on the devices of this machine, then check the saved weights."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from tools.commands.protocol import Command
from tools.setup.environment import Environment
from tools.setup.running import run, say, timed
from tools.workspace import ROOT

OUTPUT = "runs/digits"
DEVICES = """
import torch
here = torch.accelerator.is_available()
print(torch.accelerator.current_accelerator().type if here else "cpu", torch.accelerator.device_count())
"""
NAMES = {"cuda": "GPU", "mps": "Apple GPU"}


def launch_options(kind: str, count: int) -> tuple[list[str], str]:
    """Return the options of the launch, one process for each device and on the CPU two; and what that is in words."""
    if kind == "cpu":
        return ["--cpu", "--num_processes", "2"], "no accelerator here: two processes on the CPU"
    name = NAMES.get(kind, f"`{kind}` device")
    each = f"one {name} here: one process" if count == 1 else f"{count} {name}s here: a process for each"
    return ["--num_processes", str(count)], each


def demo(arguments: argparse.Namespace) -> int:
    environment = Environment("demo").ensure()
    environ = environment.child_environ()
    asked: list[str | Path] = [environment.python, "-c", DEVICES]
    kind, count = subprocess.run(
        asked, env=environ, capture_output=True, text=True, check=True
    ).stdout.split()
    options, words = launch_options(kind, int(count))
    say(words)
    train: list[str | Path] = [environment.program("accel"), "launch", *options]
    train += ["docs/examples/digits.py", "--output_dir", OUTPUT, *arguments.handed_on]
    with timed("training"):
        code = run(train, cwd=ROOT, environ=environ)
    if code != 0:
        return code
    return run([environment.python, "docs/examples/check_digits.py", OUTPUT], cwd=ROOT, environ=environ)


command = Command(
    help="train an image classifier on the devices here, or on two CPU processes, and check it", run=demo
)
