"""Test each package from its wheel, in an environment with only its declared dependencies."""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.commands.protocol import Command
from tools.release.floors import floors_of, with_siblings_at_floors
from tools.setup.environment import Environment
from tools.setup.running import run, say, timed
from tools.setup.wheels import build, pinned
from tools.workspace import ROOT, read_packages, with_siblings


def isolated(arguments: argparse.Namespace) -> int:
    packages = read_packages()
    results: dict[str, int] = {}
    for name in arguments.packages or packages:
        needed = (
            with_siblings_at_floors(packages, name) if arguments.floors else with_siblings(packages, name)
        )
        floors = floors_of(needed) if arguments.floors else []
        say(" ".join([*(f"{each.name}=={each.version}" for each in needed), *floors]))
        wheels = build([each.folder for each in needed], ROOT / "build" / "isolated" / name)
        constraints = pinned(wheels, torch=arguments.torch, floors=floors)
        environment = Environment(f"isolated.{name}", constraints)
        environment.remove()
        environment.ensure()
        tests: list[str | Path] = [packages[name].tests.relative_to(ROOT), "-p", "no:cacheprovider"]
        command = [environment.python, "-m", "pytest", *tests, *arguments.handed_on]
        with timed(f"testing only {name}"):
            results[name] = run(command, cwd=ROOT, environ=environment.child_environ())
    for name, code in results.items():
        print(f"  {name:<16} {'ok' if code == 0 else f'FAILED (pytest exit {code})'}")
    return max(results.values())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "packages", nargs="*", metavar="PACKAGE", help="e.g. accel-ops; every package if left out"
    )
    parser.add_argument(
        "--floors",
        action="store_true",
        help="install the lowest declared version of each dependency, and siblings from their tags",
    )
    parser.add_argument(
        "--torch", metavar="RELEASE", help="a release of torch instead of the pinned one, e.g. 2.9"
    )


command = Command(
    help="test each package with only its declared dependencies (--floors: at the lowest declared versions)",
    run=isolated,
    add_arguments=add_arguments,
)
