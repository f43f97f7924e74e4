"""Give packages their next version: ``python -m tools.release.bump accel-data minor``.

Rewrites the version, dates the open section of the changelog, raises the floors of siblings to the versions it was
tested with, widens the ranges of dependents that would no longer match, and prints the tag that releases it. It
commits nothing. Siblings are released first: with an open section in the changelog of one, nothing is done.
``bump --all minor`` does so for every package whose changelog has an open section, the lowest first.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from tools.release.changelog import close_section, has_open_section
from tools.setup.failures import SetupError
from tools.workspace import ROOT, Package, as_numbers, is_admitted, lowest_first, read_packages

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


def set_floor(package: Package, *, sibling: str, version: str, where: Callable[[str], bool]) -> bool:
    """Require ``~=version`` of ``sibling`` instead of the floors that ``where`` finds; return True if any changed."""
    file = package.folder / "pyproject.toml"
    text = file.read_text(encoding="utf-8")
    pattern = rf'(?P<head>"{re.escape(sibling)}(?:\[[^\]]*\])?)\s*~=\s*(?P<floor>[\d.]+)(?P<quote>")'
    changed = re.sub(
        pattern,
        lambda found: f"{found['head']}~={version}{found['quote']}" if where(found["floor"]) else found[0],
        text,
    )
    file.write_text(changed, encoding="utf-8")
    return changed != text


def required_siblings(package: Package, packages: Mapping[str, Package]) -> list[Package]:
    """Return the siblings that ``package`` names, in extras too.

    Raises:
        SetupError: If one has changes that were not released, which ``package`` may need.
    """
    names = sorted((package.required_names | package.extra_names) & packages.keys())
    siblings = [packages[name] for name in names]
    unreleased = [
        each.name for each in siblings if has_open_section(each.changelog.read_text(encoding="utf-8"))
    ]
    if unreleased:
        raise SetupError(
            f"{', '.join(unreleased)}: the changelog has an open section, and `{package.name}` may need those changes."
            f" Release that first, or keep the floors as they are with `--keep-floors`."
        )
    return siblings


def bump(root: Path, name: str, part: str, *, date: str, keep_floors: bool = False) -> str:
    """Give package ``name`` its next version under ``root`` and return a report; its last line is the tag."""
    packages = read_packages(root)
    if name not in packages:
        raise SetupError(f"There is no package `{name}`. Known: {', '.join(packages)}.")
    package = packages[name]
    version = next_version(package.version, part)
    dated = close_section(package.changelog.read_text(encoding="utf-8"), version=version, date=date)
    siblings = [] if keep_floors else required_siblings(package, packages)
    lines = [f"{name}: {package.version} -> {version}"]
    write_version(package, version)
    package.changelog.write_text(dated, encoding="utf-8")
    for sibling in siblings:
        newest = sibling.version
        if set_floor(package, sibling=sibling.name, version=newest, where=partial(is_lower, than=newest)):
            lines.append(f"{name}: needs {sibling.name} {newest}, the newest that is released")
    for dependent in packages.values():
        if set_floor(
            dependent, sibling=name, version=version, where=lambda floor: not is_admitted(version, floor)
        ):
            lines.append(f"{dependent.name}: now accepts {name} {version}; it needs a separate release")
    return "\n".join([*lines, f"tag: {name}-v{version}"])


def bump_all(root: Path, part: str, *, date: str) -> list[str]:
    """Give every package with an open section its next version, the lowest first; return the reports.

    Raises:
        SetupError: If none has one.
    """
    names = [
        package.name
        for package in lowest_first(read_packages(root))
        if has_open_section(package.changelog.read_text(encoding="utf-8"))
    ]
    if not names:
        raise SetupError("No changelog has an open section: there is nothing to release.")
    return [bump(root, name, part, date=date) for name in names]


def is_lower(version: str, *, than: str) -> bool:
    """Return True if ``version`` is older than another."""
    return as_numbers(version) < as_numbers(than)


def iso_date(text: str) -> str:
    """Return ``text`` if it is a date such as 2031-02-03."""
    return datetime.date.fromisoformat(text).isoformat()


def main(words: Sequence[str]) -> int:
    """Read the command line, bump, and print the changes."""
    parser = argparse.ArgumentParser(prog="python -m tools.release.bump", description=__doc__)
    parser.add_argument("package", nargs="?", help="e.g. accel-data")
    parser.add_argument("part", choices=PARTS, help="`current` releases the current version")
    parser.add_argument(
        "--all", action="store_true", help="every package whose changelog has an open section"
    )
    parser.add_argument(
        "--keep-floors", action="store_true", help="leave the lowest versions of siblings as they are"
    )
    parser.add_argument("--date", metavar="YYYY-MM-DD", type=iso_date, help="of the release: today, in UTC")
    arguments = parser.parse_args(words)
    if arguments.all == (arguments.package is not None):
        parser.error("name one package, or give --all")
    if arguments.all and arguments.keep_floors:
        parser.error("--keep-floors is for one package")
    date = arguments.date or datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    try:
        if arguments.all:
            print("\n".join(bump_all(ROOT, arguments.part, date=date)))
        else:
            keep = arguments.keep_floors
            print(bump(ROOT, arguments.package, arguments.part, date=date, keep_floors=keep))
    except SetupError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
