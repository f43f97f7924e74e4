"""Give packages their next version: ``python -m tools.release.bump minor accel-data``.

Sets the version with hatchling, dates the open section of the changelog, raises the floors of siblings to the versions
it was tested with, widens the ranges of dependents that would no longer match, and prints the tag that releases it.
Without names: every package whose changelog has an open section, the lowest first. It commits nothing.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.setup.environment import HATCH, installed_hatch, program_in
from tools.setup.running import SetupError
from tools.workspace import ROOT, Package, is_admitted, lowest_first, read_packages

OPEN = re.compile(r"^## Unreleased[ \t]*$(?=\s+[^\s#])", re.MULTILINE)
"""The heading of an open section with some text."""


def is_open(package: Package) -> bool:
    """Return True if the changelog has changes that were not released."""
    return OPEN.search(package.changelog.read_text(encoding="utf-8")) is not None


def set_floor(package: Package, sibling: str, version: str, *, if_needed: bool) -> None:
    """Require ``~=version`` of ``sibling``; ``if_needed``: only where the present range does not admit it."""
    file = package.folder / "pyproject.toml"
    changed = re.sub(
        rf'("{re.escape(sibling)}(?:\[[^\]]*\])?\s*~=)\s*([\d.]+)(")',
        lambda found: (
            found[0] if if_needed and is_admitted(version, found[2]) else f"{found[1]}{version}{found[3]}"
        ),
        file.read_text(encoding="utf-8"),
    )
    file.write_text(changed, encoding="utf-8")


def bump(root: Path, name: str, part: str, *, date: str) -> str:
    """Give package ``name`` under ``root`` its next version, and return its tag.

    Raises:
        SetupError: If its changelog has no open section, or that of a sibling has one, which it may need.
    """
    packages = read_packages(root)
    package = packages[name]
    if not is_open(package):
        raise SetupError(f"`{name}`: the changelog has no changes under `## Unreleased`. Write them there.")
    needed = [packages[each] for each in (package.required_names | package.extra_names) & packages.keys()]
    if unreleased := [each.name for each in needed if is_open(each)]:
        raise SetupError(
            f"`{name}` may need changes of {', '.join(unreleased)} that were not released. Bump that first."
        )
    installed_hatch()
    command = [str(program_in(HATCH, "python")), "-m", "hatchling", "version", part]
    subprocess.run(command, cwd=package.folder, stdout=subprocess.DEVNULL, check=True)
    version = read_packages(root)[name].version
    text = package.changelog.read_text(encoding="utf-8")
    package.changelog.write_text(OPEN.sub(f"## {version} ({date})", text, count=1), encoding="utf-8")
    for sibling in needed:
        set_floor(package, sibling.name, sibling.version, if_needed=False)
    for dependent in packages.values():
        set_floor(dependent, name, version, if_needed=True)
    return f"{name}-v{version}"


def bump_all(root: Path, part: str, *, date: str, names: Sequence[str] = ()) -> list[str]:
    """Bump the packages with ``names``, or every one with an open section, and return the tags, the lowest first."""
    ordered = lowest_first(read_packages(root))
    chosen = [each.name for each in ordered if (each.name in names if names else is_open(each))]
    return [bump(root, name, part, date=date) for name in chosen]


def today() -> str:
    """Return the date, in UTC."""
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()


def main(words: Sequence[str]) -> int:
    """Read the command line, bump, and print the tags."""
    parser = argparse.ArgumentParser(prog="python -m tools.release.bump", description=__doc__)
    parser.add_argument("part", choices=["major", "minor", "patch"])
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="e.g. accel-data")
    arguments = parser.parse_args(words)
    try:
        print("\n".join(bump_all(ROOT, arguments.part, date=today(), names=arguments.packages)))
    except SetupError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
