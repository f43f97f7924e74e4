"""Wheels of the packages: built, and tried in environments that get the packages from them."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.environments import CONSTRAINTS, HATCH, Environment, installed_hatch, program_in
from tools.running import must_run, run, say
from tools.workspace import ROOT, Package, as_numbers, read_packages, requirement_name, with_siblings

DIST = ROOT / "dist"


def wheels(arguments: argparse.Namespace) -> int:
    """Build all wheels, install them together into an empty environment, and run `accel test` there."""
    shutil.rmtree(DIST, ignore_errors=True)
    built = build([package.folder for package in read_packages().values()])
    if arguments.only_build:
        return 0
    environment = Environment("wheels", pinned(built, torch=arguments.torch)).ensure(anew=True)
    accel_test = [environment.program("accel"), "test", "--cpu", "--num_processes", "2"]
    return run(accel_test, environ=environment.child_environ())


def isolated(arguments: argparse.Namespace) -> int:
    """Test each package from its wheel, in an environment with only its declared dependencies."""
    packages = read_packages()
    results: dict[str, int] = {}
    for name in arguments.packages or packages:
        needed = with_siblings(packages, name)
        floors = floors_of(needed) if arguments.floors else []
        say(" ".join([*(f"{each.name}=={each.version}" for each in needed), *floors]))
        built = build([each.folder for each in needed], ROOT / "build" / "isolated" / name)
        constraints = pinned(built, torch=arguments.torch, floors=floors)
        environment = Environment(f"isolated.{name}", constraints).ensure(anew=True)
        tests = [packages[name].tests, "-p", "no:cacheprovider", *arguments.handed_on]
        command = [environment.python, "-m", "pytest", *tests]
        results[name] = run(command, environ=environment.child_environ())
    for name, code in results.items():
        print(f"  {name:<16} {'ok' if code == 0 else f'FAILED (pytest exit {code})'}")
    return max(results.values())


def build(folders: Iterable[Path], into: Path = DIST) -> list[Path]:
    """Build the wheels of the projects in ``folders`` with hatch's builder, and return all wheels of ``into``."""
    installed_hatch()
    say("building wheels …")
    for folder in folders:
        words = ["-m", "hatchling", "build", "-t", "wheel", "-d", into.resolve()]
        must_run([program_in(HATCH, "python"), *words], cwd=folder)
    return sorted(into.glob("*.whl"))


def pinned(wheels: Sequence[Path], *, torch: str | None = None, floors: Sequence[str] = ()) -> Path:
    """Write constraints that pin every package to its wheel, and return the file.

    No sibling is looked for on an index, where the name ``accel`` belongs to a stranger.

    Args:
        wheels: The wheels.
        torch: A release of torch in place of the usual one: ``2.9`` stands for any patch of it.
        floors: More pins.
    """
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    if torch is not None:
        lines = [each for each in lines if not each.startswith("torch==")]
        lines.append(f"torch=={torch}" if torch.count(".") == 2 else f"torch=={torch}.*")
    lines += [f"{requirement_name(each.name.partition('-')[0])} @ {each.as_uri()}" for each in wheels]
    file = ROOT / "build" / "constraints" / f"{wheels[0].parent.name}.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([*lines, *floors]) + "\n", encoding="utf-8")
    return file


def floors_of(packages: Iterable[Package]) -> list[str]:
    """Return pins to the lowest versions that all ``packages`` accept; siblings and torch are chosen otherwise."""
    floors: dict[str, str] = {}
    for requirement in (each for package in packages for each in package.dependencies if ">=" in each):
        name, version = requirement_name(requirement), requirement.split(">=")[1].split(",")[0].strip()
        if name != "torch":
            floors[name] = max(version, floors.get(name, version), key=as_numbers)
    return [f"{name}=={version}" for name, version in sorted(floors.items())]
