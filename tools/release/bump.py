"""Give a package its next version: ``python -m tools.release.bump accel-data minor``.

Rewrites the version, dates the open section of the changelog, widens the ranges of dependents that would no
longer match, and prints the tag that releases it. It commits nothing.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.release.changelog import close_section
from tools.setup.failures import SetupError
from tools.workspace import ROOT, Package, read_packages

PARTS = ("major", "minor", "patch", "current")


def next_version(version: str, part: str) -> str:
    """Return the version after ``version``; ``current`` keeps it, for the first release."""
    major, minor, patch = (int(each) for each in version.split("."))
    following = {
        "major": (major + 1, 0, 0),
        "minor": (major, minor + 1, 0),
        "patch": (major, minor, patch + 1),
        "current": (major, minor, patch),
    }
    return ".".join(str(each) for each in following[part])


def is_admitted(version: str, floor: str) -> bool:
    """Return True if ``~=floor`` (two parts, e.g. ``0.1``) admits ``version``."""
    wanted = [int(each) for each in floor.split(".")]
    given = [int(each) for each in version.split(".")]
    return given[: len(wanted) - 1] == wanted[:-1] and given >= wanted


def write_version(package: Package, version: str) -> None:
    """Put ``version`` into the package's ``__init__.py``."""
    file = package.source / "__init__.py"
    text = file.read_text(encoding="utf-8")
    changed, count = re.subn(
        r'^__version__ = "[^"]*"$', f'__version__ = "{version}"', text, flags=re.MULTILINE
    )
    if count != 1:
        raise SetupError(f"`{file}` must set `__version__` once, found {count}.")
    file.write_text(changed, encoding="utf-8")


def widen_ranges(package: Package, *, sibling: str, version: str) -> bool:
    """Let ``package`` accept ``version`` of ``sibling`` if its range would not; return True if it changed."""
    file = package.folder / "pyproject.toml"
    text = file.read_text(encoding="utf-8")
    following = ".".join(version.split(".")[:2])

    def widened(found: re.Match[str]) -> str:
        return (
            found[0]
            if is_admitted(version, found["floor"])
            else f"{found['head']}~={following}{found['quote']}"
        )

    pattern = rf'(?P<head>"{re.escape(sibling)}(?:\[[^\]]*\])?)\s*~=\s*(?P<floor>[\d.]+)(?P<quote>")'
    changed = re.sub(pattern, widened, text)
    file.write_text(changed, encoding="utf-8")
    return changed != text


def bump(root: Path, name: str, part: str, *, date: str) -> str:
    """Give package ``name`` its next version under ``root`` and return a report; its last line is the tag."""
    packages = read_packages(root)
    if name not in packages:
        raise SetupError(f"There is no package `{name}`. Known: {', '.join(packages)}.")
    package = packages[name]
    version = next_version(package.version, part)
    changelog = package.folder / "CHANGELOG.md"
    dated = close_section(changelog.read_text(encoding="utf-8"), version=version, date=date)
    write_version(package, version)
    changelog.write_text(dated, encoding="utf-8")
    lines = [f"{name}: {package.version} -> {version}"]
    for dependent in packages.values():
        if widen_ranges(dependent, sibling=name, version=version):
            lines.append(f"{dependent.name}: now accepts {name} {version}; it needs a release of its own")
    return "\n".join([*lines, f"tag: {name}-v{version}"])


def main(words: Sequence[str]) -> int:
    """Read the command line, bump, and print what was done."""
    parser = argparse.ArgumentParser(prog="python -m tools.release.bump", description=__doc__)
    parser.add_argument("package", help="e.g. accel-data")
    parser.add_argument("part", choices=PARTS, help="`current` releases the version as it stands")
    arguments = parser.parse_args(words)
    try:
        today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        print(bump(ROOT, arguments.package, arguments.part, date=today))
    except SetupError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
