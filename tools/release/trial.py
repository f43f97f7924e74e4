"""Build wheels, install them away from the sources, and test them there."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.setup.environment import Environment
from tools.setup.failures import SetupError
from tools.setup.presets import releasing
from tools.setup.running import run, timed
from tools.workspace import ROOT, Package

SMOKE_TEST = Path(__file__).with_name("wheel_smoke.py")
HARNESS = Path("tools") / "harness"


def build(names: Sequence[str], folder: Path, *, sdist: bool = False) -> list[Path]:
    """Build packages into ``folder``, all of them if none is named, and return the wheels."""
    environment = releasing().ensure()
    command: list[str | Path] = [environment.python, "-m", "tools.release.build", "--into", folder, *names]
    command += ["--sdist"] if sdist else []
    with timed("building"):
        if run(command, cwd=ROOT, environ=environment.child_environ()) != 0:
            raise SetupError("A package could not be built; see hatchling's message above.")
    return sorted(folder.glob("*.whl"))


def try_installed(
    environment: Environment,
    packages: Sequence[Package],
    handed_on: Sequence[str],
    *,
    smoke_only: bool = False,
) -> dict[str, int]:
    """Run the smoke test and each package's tests from a folder without sources; return the exit codes."""
    results = {}
    with tempfile.TemporaryDirectory(prefix="accel-wheels-") as folder:
        trial = Path(folder)
        shutil.copy(ROOT / "pyproject.toml", trial)
        shutil.copy(ROOT / "conftest.py", trial)
        shutil.copy(SMOKE_TEST, trial)
        shutil.copytree(ROOT / HARNESS, trial / HARNESS, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "tools" / "__init__.py", trial / "tools")
        environ = environment.child_environ()
        names = [package.import_name for package in packages]
        results["smoke"] = run([environment.python, SMOKE_TEST.name, *names], cwd=trial, environ=environ)
        for package in () if smoke_only else packages:
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
