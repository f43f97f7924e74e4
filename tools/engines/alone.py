"""Each of our packages, installed from its wheel into an environment with only its declared dependencies."""

from __future__ import annotations

import shutil
from pathlib import Path

from tools.engines.protocol import Engine
from tools.setup.environment import Environment
from tools.setup.failures import SetupError
from tools.setup.presets import component
from tools.setup.running import run
from tools.workspace import ROOT, read_packages

WHEELS = ROOT / "build" / "alone"
OTHERS = {"accel-backends": ROOT / "docs" / "examples" / "own_strategy"}
"""Third-party packages that extend one of ours, and are installed with it."""


def install_each(environment: Environment) -> None:
    """Build all wheels, and install each package into a separate environment."""
    build: list[str | Path] = [environment.python, "-m", "tools.release.build", "--into", WHEELS]
    if run(build, cwd=ROOT, environ=environment.child_environ()) != 0:
        raise SetupError("A package could not be built; see hatchling's message above.")
    wheels = sorted(WHEELS.glob("*.whl"))
    for name in read_packages():
        beside = [built(OTHERS[name], environment)] if name in OTHERS else []
        alone = component(name, wheels, beside=beside)
        alone.remove()  # it has wheels of earlier sources
        alone.ensure()


def built(folder: Path, environment: Environment) -> Path:
    """Build the wheel of a package of others."""
    into = WHEELS / folder.name
    shutil.rmtree(into, ignore_errors=True)
    build: list[str | Path] = [environment.python, "-m", "hatchling", "build", "-t", "wheel", "-d", into]
    if run(build, cwd=folder, environ=environment.child_environ()) != 0:
        raise SetupError(f"`{folder.name}` could not be built; see hatchling's message above.")
    return next(into.glob("*.whl"))


engine = Engine(
    name="alone",
    purpose="each package by itself: a wheel, its declared dependencies, and plain PyTorch",
    tests=("integration-tests/test_alone.py",),
    prepare=install_each,
    num_workers=2,
)
