"""Build all wheels, install them where no source lies, and test what was installed."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from tools.commands.protocol import Command
from tools.release.build import DIST
from tools.setup.environment import Environment
from tools.setup.failures import SetupError
from tools.setup.presets import development, wheel_trial
from tools.setup.running import run, timed
from tools.workspace import ROOT, Package, read_packages

SMOKE_TEST = Path(__file__).with_name("wheel_smoke.py")


def build() -> list[Path]:
    """Build one wheel per package into ``dist/`` and return them."""
    environment = development().ensure()
    command: list[str | Path] = [environment.python, "-m", "tools.release.build"]
    with timed("building wheels"):
        if run(command, cwd=ROOT, environ=environment.child_environ()) != 0:
            raise SetupError("A wheel could not be built; hatchling says why above.")
    return sorted(DIST.glob("*.whl"))


def test_installed(environment: Environment, packages: list[Package], handed_on: list[str]) -> dict[str, int]:
    """Run the smoke test and each package's tests from a folder without sources."""
    results = {}
    with tempfile.TemporaryDirectory(prefix="accel-wheels-") as folder:
        trial = Path(folder)
        shutil.copy(ROOT / "pyproject.toml", trial)
        shutil.copy(ROOT / "conftest.py", trial)
        shutil.copy(SMOKE_TEST, trial)
        environ = environment.child_environ()
        names = [package.import_name for package in packages]
        results["smoke"] = run([environment.python, SMOKE_TEST.name, *names], cwd=trial, environ=environ)
        for package in packages:
            copied = trial / "packages" / package.name
            shutil.copytree(package.folder, copied, ignore=shutil.ignore_patterns("src", "__pycache__"))
            tests = f"packages/{package.name}/tests"
            command: list[str | Path] = [
                environment.python,
                "-m",
                "pytest",
                tests,
                "-p",
                "no:cacheprovider",
                *handed_on,
            ]
            results[package.name] = run(command, cwd=trial, environ=environ)
    return results


def wheels(arguments: argparse.Namespace) -> int:
    packages = list(read_packages().values())
    built = build()
    if arguments.only_build:
        return 0
    environment = wheel_trial(built)
    environment.remove()
    results = test_installed(environment.ensure(), packages, arguments.handed_on)
    for name, code in results.items():
        print(f"  {name:<16} {'ok' if code == 0 else f'FAILED (exit {code})'}")
    return max(results.values())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only-build", action="store_true", help="build into dist/ and stop")


command = Command(
    help="build all wheels, install them into an empty environment and test them without the sources",
    run=wheels,
    add_arguments=add_arguments,
)
