"""Build all wheels, install them away from the sources, and test the installed packages."""

from __future__ import annotations

import argparse

from tools.commands.protocol import Command
from tools.release.build import DIST
from tools.release.trial import build, try_installed
from tools.setup.presets import wheel_trial
from tools.workspace import read_packages


def wheels(arguments: argparse.Namespace) -> int:
    built = build([], DIST)
    if arguments.only_build:
        return 0
    environment = wheel_trial(built, torch=arguments.torch)
    environment.remove()
    packages = list(read_packages().values())
    results = try_installed(environment.ensure(), packages, arguments.handed_on)
    for name, code in results.items():
        print(f"  {name:<16} {'ok' if code == 0 else f'FAILED (exit {code})'}")
    return max(results.values())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only-build", action="store_true", help="build into dist/ and stop")
    parser.add_argument(
        "--torch", metavar="RELEASE", help="a release of torch instead of the pinned one, e.g. 2.9"
    )


command = Command(
    help="build all wheels, install them into an empty environment and test them without the sources",
    run=wheels,
    add_arguments=add_arguments,
)
