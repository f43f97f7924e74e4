"""Each of our packages, installed from its wheel into an environment with only its declared dependencies."""

from __future__ import annotations

import shutil

from tools.engines.protocol import Engine
from tools.setup.environment import Environment
from tools.setup.wheels import build, pinned
from tools.workspace import ROOT, read_packages

WHEELS = ROOT / "build" / "alone"
STRATEGY = ROOT / "docs" / "examples" / "own_strategy"
"""A third-party package that extends accel-backends, and is installed with it."""


def install_each(environment: Environment) -> None:
    """Build all wheels, and install each package into a separate environment."""
    shutil.rmtree(WHEELS, ignore_errors=True)
    packages = read_packages()
    constraints = pinned(build([STRATEGY, *(package.folder for package in packages.values())], WHEELS))
    for name in packages:
        alone = Environment(f"alone.{name}", constraints)
        alone.remove()  # it has wheels of earlier sources
        alone.ensure()


engine = Engine(
    name="alone",
    purpose="each package by itself: a wheel, its declared dependencies, and plain PyTorch",
    tests=("integration-tests/test_alone.py",),
    prepare=install_each,
    num_workers=2,
)
