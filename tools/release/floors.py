"""The lowest versions that a package declares: of siblings, as they were released, and of everything else."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tools.setup.running import SetupError
from tools.workspace import ROOT, Package, as_numbers, read_package, requirement_name, sibling_floor

NO_FLOOR_RUN = {"torch"}  # its release is chosen by tools/constraints.txt or `--torch`


def floors_of(packages: Iterable[Package]) -> list[str]:
    """Return pins of third-party dependencies to the lowest version that all ``packages`` accept."""
    declared = [each for package in packages for each in package.dependencies if ">=" in each]
    floors: dict[str, str] = {}
    for requirement in declared:
        name, version = requirement_name(requirement), requirement.split(">=")[1].split(",")[0].strip()
        if name not in NO_FLOOR_RUN:
            floors[name] = max(version, floors.get(name, version), key=as_numbers)
    return [f"{name}=={version}" for name, version in sorted(floors.items())]


def with_siblings_at_floors(
    packages: Mapping[str, Package], name: str, *, root: Path = ROOT
) -> list[Package]:
    """Return package ``name`` of the checkout and its siblings at the lowest versions that are declared.

    Raises:
        SetupError: If a version is declared that was never released and is not the one of the checkout.
    """
    chosen, unread = {name: packages[name]}, [name]
    while unread:
        for requirement in chosen[unread.pop()].dependencies:
            sibling = requirement_name(requirement)
            if sibling not in packages:
                continue
            floor = sibling_floor(requirement)
            if sibling not in chosen or as_numbers(floor) > as_numbers(chosen[sibling].version):
                chosen[sibling] = package_at(packages[sibling], floor, root)
                unread.append(sibling)
    return list(chosen.values())


def package_at(package: Package, version: str, root: Path) -> Package:
    """Return ``package`` as in its tag, or as in the checkout if that has this version, which is to be tagged."""
    tag, place = f"{package.name}-v{version}", package.folder.relative_to(root).as_posix()
    archive = subprocess.run(
        ["git", "archive", "--format=tar", tag, place], cwd=root, capture_output=True, check=False
    )
    if archive.returncode == 0:
        folder = root / "build" / "floors" / tag
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
        return read_package(folder / place)
    if package.version != version:
        raise SetupError(
            f"`{package.name}~={version}` is declared, but there is no tag `{tag}` (`git fetch --tags`), and the"
            f" checkout has {package.version}. Name a version that was released."
        )
    return package
