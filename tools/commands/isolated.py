"""Test each package from its wheel, in an environment with only its declared dependencies."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from tools.setup.environment import Environment
from tools.setup.running import run, say, timed
from tools.setup.wheels import build, pinned
from tools.workspace import ROOT, Package, as_numbers, read_packages, requirement_name, with_siblings


def floors_of(packages: Iterable[Package]) -> list[str]:
    """Return pins to the lowest versions that all ``packages`` accept; siblings and torch are chosen otherwise."""
    floors: dict[str, str] = {}
    for requirement in (each for package in packages for each in package.dependencies if ">=" in each):
        name, version = requirement_name(requirement), requirement.split(">=")[1].split(",")[0].strip()
        if name != "torch":
            floors[name] = max(version, floors.get(name, version), key=as_numbers)
    return [f"{name}=={version}" for name, version in sorted(floors.items())]


def main(arguments: argparse.Namespace) -> int:
    packages = read_packages()
    results: dict[str, int] = {}
    for name in arguments.packages or packages:
        needed = with_siblings(packages, name)
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
    add = parser.add_argument
    add("packages", nargs="*", metavar="PACKAGE", help="e.g. accel-ops; every package if left out")
    add("--floors", action="store_true", help="install the lowest declared version of each dependency")
    add("--torch", metavar="RELEASE", help="a release of torch instead of the pinned one, e.g. 2.9")
