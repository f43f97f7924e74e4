"""The lowest versions that a package declares: of siblings, as they were released, and of everything else."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.release.artifacts import extract
from tools.release.changelog import is_released
from tools.setup.failures import SetupError
from tools.workspace import (
    ROOT,
    Package,
    as_numbers,
    read_package,
    requirement_name,
    sibling_floor,
    with_siblings,
)

NO_FLOOR_RUN = {"torch"}  # its release is chosen by tools/constraints.txt or `--torch`


def floors_of(packages: Sequence[Package]) -> list[str]:
    """Return pins of third-party dependencies to the lowest version that all ``packages`` accept."""
    siblings = {package.name for package in packages}
    floors: dict[str, str] = {}
    for package in packages:
        for requirement in package.dependencies:
            name = requirement_name(requirement)
            if name in siblings or name in NO_FLOOR_RUN:
                continue
            if ">=" not in requirement:
                raise ValueError(f"`{requirement}` of `{package.name}` has no floor (`>=`).")
            version = requirement.split(">=")[1].split(",")[0].strip()
            floors[name] = max(version, floors.get(name, version), key=as_numbers)
    return [f"{name}=={version}" for name, version in sorted(floors.items())]


def siblings_at_floors(
    packages: Mapping[str, Package], name: str, *, root: Path = ROOT, folder: Path = ROOT / "build" / "floors"
) -> list[Package]:
    """Return package ``name`` of the checkout and its siblings at the lowest versions that are declared.

    Args:
        packages: Every package of the checkout.
        name: The package to test.
        root: The repository with the tags.
        folder: Folder for unpacked released versions.

    Raises:
        SetupError: If a version is declared that was never released and is not the one of the checkout.
    """
    chosen, floors, unread = {name: packages[name]}, dict[str, str](), [name]
    while unread:
        for requirement in chosen[unread.pop()].dependencies:
            sibling = requirement_name(requirement)
            if sibling not in packages:
                continue
            floor = sibling_floor(requirement)
            if sibling not in floors or as_numbers(floor) > as_numbers(floors[sibling]):
                floors[sibling] = floor
                chosen[sibling] = package_at(packages[sibling], floor, root=root, folder=folder)
                unread.append(sibling)
    return with_siblings({**packages, **chosen}, name)


def package_at(package: Package, version: str, *, root: Path, folder: Path) -> Package:
    """Return ``package`` as in its tag, or as in the checkout if that is ``version`` and has no tag yet.

    Between the bump and the tags, the checkout is the content of the future tags.

    Raises:
        SetupError: If there is neither.
    """
    tag = f"{package.name}-v{version}"
    known = subprocess.run(
        ["git", "rev-parse", "--quiet", "--verify", f"refs/tags/{tag}"],
        cwd=root, capture_output=True, check=False,
    ).returncode == 0  # fmt: skip
    if known:
        place = package.folder.relative_to(root)
        archive = subprocess.run(
            ["git", "archive", "--format=tar", tag, str(place)], cwd=root, capture_output=True, check=True
        ).stdout
        shutil.rmtree(folder / tag, ignore_errors=True)
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            extract(files, folder / tag)
        return read_package(folder / tag / place)
    if package.version == version:
        return package
    if is_released(package.changelog.read_text(encoding="utf-8"), version):
        raise SetupError(
            f"{package.name} {version} was released, but there is no tag `{tag}`: `git fetch --tags`."
        )
    raise SetupError(
        f"`{package.name}~={version}` is declared, but there is no tag `{tag}`, and the checkout has"
        f" {package.version}. Name a version that was released."
    )
