"""The environments that the commands use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tools.setup.environment import CONSTRAINTS, Environment
from tools.setup.torch_release import constraints_with_torch
from tools.workspace import ROOT, dependency_group, read_packages, requirement_name, with_siblings


def development() -> Environment:
    """Everything: all packages editable, and what tests, checks and the demo need."""
    return Environment(ROOT / ".venv", list(read_packages().values()), dependency_group("dev"))


def demonstration() -> Environment:
    """The part of the development environment that the demo needs; the rest can be added to it later."""
    return Environment(ROOT / ".venv", list(read_packages().values()), dependency_group("demo"))


def benchmarks() -> Environment:
    """All packages, with Accelerate to compare with."""
    return Environment(ROOT / ".venvs" / "bench", list(read_packages().values()), dependency_group("bench"))


def heavy_engines() -> Environment:
    """All packages, with engines and services that ordinary tests do not need."""
    requirements = [*dependency_group("test"), *dependency_group("heavy-engines")]
    return Environment(ROOT / ".venvs" / "engines", list(read_packages().values()), requirements)


def documentation() -> Environment:
    """The builder of the documentation site; it reads our packages from their sources, and needs no torch."""
    return Environment(ROOT / ".venvs" / "docs", (), dependency_group("docs"))


def browser() -> Environment:
    """A browser driver, and our packages that pytest needs."""
    requirements = [*dependency_group("test"), *dependency_group("browser")]
    return Environment(
        ROOT / ".venvs" / "browser", with_siblings(read_packages(), "accel-state"), requirements
    )


def wheel_trial(wheels: Sequence[Path], *, torch: str | None = None) -> Environment:
    """Nothing of the checkout: the built wheels, and what their tests need; ``torch`` is a release such as ``2.9``."""
    folder, constraints = "wheels", CONSTRAINTS
    if torch is not None:
        folder += f"-torch-{torch}"
        constraints = constraints_with_torch(torch, read_packages().values(), constraints=CONSTRAINTS)
    requirements = [*map(str, wheels), *dependency_group("test")]
    return Environment(
        ROOT / ".venvs" / folder, (), requirements, constraints=constraints, stubs_for_cuda=True
    )


def only_torch() -> Environment:
    """Torch and its requirements, the base of every environment of `component`."""
    return Environment(ROOT / ".venvs" / "alone-torch", (), ["torch"], stubs_for_cuda=True)


def component(name: str, wheels: Sequence[Path], *, beside: Sequence[Path] = ()) -> Environment:
    """One of our packages as a user installs it, with its dependencies; every package requires torch.

    Args:
        name: The package.
        wheels: The wheels of all packages. Siblings are installed from them if something requires them.
        beside: Third-party wheels that are installed, too.
    """
    places = {requirement_name(wheel.name.partition("-")[0]): wheel for wheel in wheels}
    return Environment(
        ROOT / ".venvs" / f"alone-{name}",
        (),
        [str(places.pop(name)), *map(str, beside)],
        extra_constraints=[f"{sibling} @ {wheel.as_uri()}" for sibling, wheel in places.items()],
        base=only_torch(),
    )


def releasing() -> Environment:
    """The programs that build, check and describe a release; no torch."""
    return Environment(ROOT / ".venvs" / "release", (), dependency_group("release"))


def libraries() -> Environment:
    """Libraries that import `accelerate`."""
    requirements = [*dependency_group("test"), *dependency_group("libraries")]
    return Environment(ROOT / ".venvs" / "libraries", list(read_packages().values()), requirements)


def clusters() -> Environment:
    """All packages, with Ray and the models of Kubernetes' resources."""
    requirements = [*dependency_group("test"), *dependency_group("clusters")]
    return Environment(ROOT / ".venvs" / "clusters", list(read_packages().values()), requirements)
