"""Another release of torch than the one in ``tools/constraints.txt``, for one environment."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tools.setup.failures import SetupError
from tools.workspace import ROOT, Package, as_numbers, requirement_name

OLDEST_AND_NEWEST = ("2.9", "2.15")
"""The releases that every package is tested on, as in the README."""


def torch_floor(packages: Iterable[Package]) -> str:
    """Return the lowest release of torch that all ``packages`` accept, e.g. ``2.9``."""
    floors = {
        requirement.split(">=")[1].split(",")[0].strip()
        for package in packages
        for requirement in package.dependencies
        if requirement_name(requirement) == "torch"
    }
    return max(floors, key=as_numbers)


def constraints_with_torch(
    release: str,
    packages: Iterable[Package],
    *,
    constraints: Path,
    folder: Path = ROOT / "build" / "constraints",
) -> Path:
    """Write a copy of ``constraints`` that pins torch to ``release`` instead, and return its path.

    Args:
        release: ``2.9`` stands for any patch of it, ``2.9.0`` for that one.
        packages: The packages that are to be installed with it.
        constraints: The file to copy. It pins torch on a separate line.
        folder: Folder for the copy.

    Raises:
        SetupError: If ``release`` is no release, or is older than ``packages`` declare.
    """
    if re.fullmatch(r"\d+\.\d+(\.\d+)?", release) is None:
        raise SetupError(f"`--torch` takes a release such as 2.9 or 2.9.0, got `{release}`.")
    floor = torch_floor(packages)
    if as_numbers(release) < as_numbers(floor):
        raise SetupError(
            f"`--torch {release}` is below the range that the packages declare (torch>={floor})."
            f" Name {floor} or newer."
        )
    pin = f"torch=={release}" if release.count(".") == 2 else f"torch=={release}.*"
    text = re.sub(r"^torch==.*$", pin, constraints.read_text(encoding="utf-8"), flags=re.MULTILINE)
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / f"torch-{release}.txt"
    copy.write_text(text, encoding="utf-8")
    return copy
