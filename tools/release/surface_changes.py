"""Removals from the public surface of a package since its last release."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tools.setup.failures import SetupError
from tools.workspace import Package, as_numbers

LINE = re.compile(r"(?P<indent> *)(?:(?:class|def|property|classmethod|staticmethod|module) )?(?P<name>\w+)")


def names_of(surface: str) -> set[str]:
    """Return the names that a ``surface.txt`` lists, names of members as ``Class.member``."""
    names, owner = set(), ""
    for line in surface.splitlines():
        found = LINE.match(line)
        if found is None:  # the heading
            continue
        if not found["indent"]:
            owner = found["name"]
        names.add(f"{owner}.{found['name']}" if found["indent"] else owner)
    return names


def last_release(package: Package, root: Path) -> str | None:
    """Return the version of the newest tag below the version of ``package``, or None before the first."""
    command = ["git", "tag", "--list", f"{package.name}-v*"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split()
    versions = [tag.removeprefix(f"{package.name}-v") for tag in listed]
    earlier = [each for each in versions if as_numbers(each) < as_numbers(package.version)]
    return max(earlier, key=as_numbers, default=None)


def require_announced_removals(package: Package, notes: str, *, root: Path) -> str:
    """Compare the surface of ``package`` with that of its last release, and return the problems.

    Args:
        package: The package to release.
        notes: Its changelog's section of the release.
        root: The repository with the tags.

    Raises:
        SetupError: If a patch release removes a public name, or a minor one does without naming it in ``notes``.
    """
    last = last_release(package, root)
    if last is None:
        return "first release"
    place = (package.folder / "surface.txt").relative_to(root).as_posix()
    command = ["git", "show", f"{package.name}-v{last}:{place}"]
    before = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    present = names_of((package.folder / "surface.txt").read_text(encoding="utf-8"))
    gone = names_of(before) - present
    removed = sorted(each for each in gone if "." not in each or each.split(".")[0] not in gone)
    if not removed:
        return f"nothing removed since {last}"
    if as_numbers(package.version)[:2] == as_numbers(last)[:2]:
        raise SetupError(
            f"`{package.name}` {package.version} is a patch release of {last}, but removes {', '.join(removed)}."
            " Keep them, or make it a minor release."
        )
    silent = [each for each in removed if not re.search(rf"\b{each.split('.')[-1]}\b", notes)]
    if silent:
        raise SetupError(
            f"`{package.name}` {package.version} removes {', '.join(silent)}, which the changelog does not name."
            " Add a line with the replacement."
        )
    return f"{len(removed)} removed since {last}, all in the changelog"
