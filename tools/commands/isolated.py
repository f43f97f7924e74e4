"""Test each package in an environment that holds only what the package declares."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from tools.commands.protocol import Command
from tools.setup.environment import Environment
from tools.setup.running import run, say, timed
from tools.workspace import ROOT, Package, dependency_group, read_packages, requirement_name, with_siblings

NO_FLOOR_RUN = {"torch"}  # pinned by tools/constraints.txt for every run


def floors_of(packages: Sequence[Package]) -> list[str]:
    """Return pins that hold third-party dependencies at the lowest version ``packages`` declare."""
    siblings = {package.name for package in packages}
    floors: dict[str, str] = {}
    for package in packages:
        for requirement in package.dependencies:
            name = requirement_name(requirement)
            if name in siblings or name in NO_FLOOR_RUN:
                continue
            if ">=" not in requirement:
                raise ValueError(f"`{requirement}` of `{package.name}` has no floor (`>=`).")
            version = requirement.split(">=")[1].split(",")[0].strip()
            if floors.setdefault(name, version) != version:
                raise ValueError(f"`{name}` has two floors: {floors[name]} and {version} (`{package.name}`).")
    return [f"{name}=={version}" for name, version in sorted(floors.items())]


def isolated_environment(packages: Mapping[str, Package], name: str, *, floors: bool) -> Environment:
    """Return the environment of one package: it, its siblings, what they declare, pytest and hypothesis."""
    needed = with_siblings(packages, name)
    return Environment(
        ROOT / ".venvs" / (f"floors-{name}" if floors else f"isolated-{name}"),
        needed,
        dependency_group("test"),
        extra_constraints=floors_of(needed) if floors else (),
    )


def test_alone(packages: Mapping[str, Package], name: str, *, floors: bool, handed_on: Sequence[str]) -> int:
    environment = isolated_environment(packages, name, floors=floors).ensure()
    if floors:
        say("floors: " + " ".join(environment.extra_constraints))
    tests = packages[name].tests.relative_to(ROOT)
    with timed(f"testing {name} alone"):
        return run(
            [environment.python, "-m", "pytest", tests, "-p", "no:cacheprovider", *handed_on],
            cwd=ROOT,
            environ=environment.child_environ(),
        )


def isolated(arguments: argparse.Namespace) -> int:
    packages = read_packages()
    results: dict[str, int] = {}
    for name in arguments.packages or packages:
        results[name] = test_alone(packages, name, floors=arguments.floors, handed_on=arguments.handed_on)
        if not arguments.keep and results[name] == 0:
            isolated_environment(packages, name, floors=arguments.floors).remove()
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
        help="hold third-party dependencies at the lowest version that is declared",
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the environments (about 1 GB each) after success"
    )


command = Command(
    help="test each package with only what it declares (--floors: at the lowest declared versions)",
    run=isolated,
    add_arguments=add_arguments,
)
