"""Build all wheels, install them away from the sources, and test the installed packages."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from tools.commands.protocol import Command
from tools.setup.environment import Environment
from tools.setup.running import run
from tools.setup.wheels import DIST, build, pinned
from tools.workspace import ROOT, read_packages

SMOKE_TEST = ROOT / "tools" / "release" / "wheel_smoke.py"
OF_TESTS = ("pyproject.toml", "conftest.py", "tools/__init__.py", "tools/harness")
"""What tests need beside their packages."""


def wheels(arguments: argparse.Namespace) -> int:
    packages = read_packages()
    shutil.rmtree(DIST, ignore_errors=True)
    built = build([package.folder for package in packages.values()])
    if arguments.only_build:
        return 0
    environment = Environment("wheels", pinned(built, torch=arguments.torch))
    environment.remove()
    environment.ensure()
    environ = environment.child_environ()
    with tempfile.TemporaryDirectory(prefix="accel-wheels-") as folder:
        for name in OF_TESTS:
            copy(ROOT / name, Path(folder, name))
        names = [package.import_name for package in packages.values()]
        results = {"smoke": run([environment.python, SMOKE_TEST, *names], cwd=Path(folder), environ=environ)}
        for name in () if arguments.smoke else packages:
            copy(packages[name].folder, Path(folder, "packages", name))
            command = [environment.python, "-m", "pytest", f"packages/{name}/tests", "-p", "no:cacheprovider"]
            results[name] = run([*command, *arguments.handed_on], cwd=Path(folder), environ=environ)
    for name, code in results.items():
        print(f"  {name:<16} {'ok' if code == 0 else f'FAILED (exit {code})'}")
    return max(results.values())


def copy(source: Path, target: Path) -> None:
    """Copy a file, or a folder without sources."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("src", "__pycache__"))
    else:
        shutil.copy(source, target)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only-build", action="store_true", help="build into dist/ and stop")
    parser.add_argument("--smoke", action="store_true", help="train one model, and leave out the tests")
    parser.add_argument(
        "--torch", metavar="RELEASE", help="a release of torch instead of the pinned one, e.g. 2.9"
    )


command = Command(
    help="build all wheels, install them into an empty environment and test them without the sources",
    run=wheels,
    add_arguments=add_arguments,
)
