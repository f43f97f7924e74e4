"""Build all wheels, install them together into an empty environment, and run `accel test` there."""

from __future__ import annotations

import argparse
import shutil

from tools.setup.environment import Environment
from tools.setup.running import run
from tools.setup.wheels import DIST, build, pinned
from tools.workspace import read_packages


def main(arguments: argparse.Namespace) -> int:
    shutil.rmtree(DIST, ignore_errors=True)
    built = build([package.folder for package in read_packages().values()])
    if arguments.only_build:
        return 0
    environment = Environment("wheels", pinned(built, torch=arguments.torch))
    environment.remove()
    environment.ensure()
    accel_test = [environment.program("accel"), "test", "--cpu", "--num_processes", "2"]
    return run(accel_test, cwd=DIST, environ=environment.child_environ())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--only-build", action="store_true", help="build into dist/ and stop")
    add("--torch", metavar="RELEASE", help="a release of torch instead of the pinned one, e.g. 2.9")
