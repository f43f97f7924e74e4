"""Test each package in an environment with only its declared dependencies."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from tools.commands.protocol import Command
from tools.release.floors import floors_of, siblings_at_floors
from tools.setup.environment import CONSTRAINTS, Environment
from tools.setup.running import run, say, timed
from tools.setup.torch_release import constraints_with_torch
from tools.workspace import ROOT, Package, dependency_group, read_packages, with_siblings


def isolated_environment(
    packages: Mapping[str, Package], name: str, *, floors: bool = False, torch: str | None = None
) -> Environment:
    """Return the environment of one package: it, its siblings, their dependencies, pytest and hypothesis.

    Args:
        packages: Every package of the checkout.
        name: The package to test.
        floors: Install the lowest declared version of each dependency, and siblings from their tags.
        torch: A release of torch, such as ``2.9``; None for the one that every other environment has.
    """
    needed = siblings_at_floors(packages, name) if floors else with_siblings(packages, name)
    folder = f"floors-{name}" if floors else f"isolated-{name}"
    constraints = CONSTRAINTS
    if torch is not None:
        folder += f"-torch-{torch}"
        constraints = constraints_with_torch(torch, needed, constraints=CONSTRAINTS)
    return Environment(
        ROOT / ".venvs" / folder,
        needed,
        dependency_group("test"),
        constraints=constraints,
        extra_constraints=floors_of(needed) if floors else (),
    )


def test_alone(environment: Environment, package: Package, *, handed_on: Sequence[str]) -> int:
    environment.ensure()
    if environment.extra_constraints:
        siblings = [f"{each.name}=={each.version}" for each in environment.packages if each != package]
        say("floors: " + " ".join([*siblings, *environment.extra_constraints]))
    tests = package.tests.relative_to(ROOT)
    with timed(f"testing only {package.name}"):
        return run(
            [environment.python, "-m", "pytest", tests, "-p", "no:cacheprovider", *handed_on],
            cwd=ROOT,
            environ=environment.child_environ(),
        )


def isolated(arguments: argparse.Namespace) -> int:
    packages = read_packages()
    results: dict[str, int] = {}
    for name in arguments.packages or packages:
        environment = isolated_environment(packages, name, floors=arguments.floors, torch=arguments.torch)
        results[name] = test_alone(environment, packages[name], handed_on=arguments.handed_on)
        if not arguments.keep and results[name] == 0:
            environment.remove()
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
        "--torch",
        metavar="RELEASE",
        help="a release of torch instead of the pinned one, e.g. 2.9 (without a CPU build in pip's index: several GB)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the environments (about 1 GB each) after success"
    )


command = Command(
    help="test each package with only its declared dependencies (--floors: at the lowest declared versions)",
    run=isolated,
    add_arguments=add_arguments,
)
