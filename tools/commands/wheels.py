"""Build all wheels, or take one that is to be published, install where no source lies, and test what was installed."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.commands.protocol import Command
from tools.release.build import DIST
from tools.setup.environment import Environment, shown
from tools.setup.failures import SetupError
from tools.setup.presets import development, wheel_trial
from tools.setup.running import run, timed
from tools.workspace import ROOT, Package, read_packages, with_siblings

SMOKE_TEST = Path(__file__).with_name("wheel_smoke.py")


def build(names: Sequence[str], folder: Path) -> list[Path]:
    """Build the wheels of packages into ``folder`` and return them."""
    environment = development().ensure()
    command: list[str | Path] = [environment.python, "-m", "tools.release.build", "--into", folder, *names]
    with timed("building wheels"):
        if run(command, cwd=ROOT, environ=environment.child_environ()) != 0:
            raise SetupError("A wheel could not be built; hatchling says why above.")
    return sorted(folder.glob("*.whl"))


def built_wheel(package: Package, folder: Path) -> Path:
    """Return the wheel of ``package`` that lies in ``folder``.

    Raises:
        SetupError: If there is none of the package's version.
    """
    name = f"{package.import_name}-{package.version}-py3-none-any.whl"
    if not (folder / name).is_file():
        raise SetupError(
            f"`{shown(folder / name)}` is missing. `python -m tools.release.build {package.name}`"
        )
    return folder / name


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
    known = read_packages()
    if arguments.built is None:
        packages = list(known.values())
        built = build([], DIST)
        if arguments.only_build:
            return 0
    else:
        packages = [known[arguments.built]]
        siblings = [each.name for each in with_siblings(known, arguments.built)[:-1]]
        built = [built_wheel(packages[0], DIST)]
        built += build(siblings, ROOT / "build" / "siblings") if siblings else []
    environment = wheel_trial(built)
    environment.remove()
    results = test_installed(environment.ensure(), packages, arguments.handed_on)
    for name, code in results.items():
        print(f"  {name:<16} {'ok' if code == 0 else f'FAILED (exit {code})'}")
    return max(results.values())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only-build", action="store_true", help="build into dist/ and stop")
    parser.add_argument(
        "--built",
        metavar="PACKAGE",
        choices=list(read_packages()),
        help="build nothing of it: test the wheel of this package that lies in dist/, as it will be published",
    )


command = Command(
    help="build all wheels, install them into an empty environment and test them without the sources",
    run=wheels,
    add_arguments=add_arguments,
)
