"""Read a release tag: ``python -m tools.release.tag accel-data-v0.2.1`` checks it and prints its parts.

Prints ``package=…``, ``version=…`` lines (for a CI's outputs), or with ``--notes`` the changelog section.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.release.changelog import notes_of
from tools.setup.failures import SetupError
from tools.workspace import ROOT, Package, read_packages


def package_of_tag(tag: str, root: Path) -> Package:
    """Return the package that ``tag`` releases.

    Raises:
        SetupError: If the tag has another form, names no package, or another version than the source.
    """
    found = re.fullmatch(r"(?P<name>[a-z-]+)-v(?P<version>\d+\.\d+\.\d+)", tag)
    packages = read_packages(root)
    if found is None or found["name"] not in packages:
        raise SetupError(
            f"`{tag}` is no release tag. It reads like accel-data-v0.2.1; packages: {', '.join(packages)}."
        )
    package = packages[found["name"]]
    if package.version != found["version"]:
        raise SetupError(f"`{tag}` is tagged, but the source of `{package.name}` says {package.version}.")
    return package


def main(words: Sequence[str]) -> int:
    """Read the command line and print the requested value."""
    parser = argparse.ArgumentParser(prog="python -m tools.release.tag", description=__doc__)
    parser.add_argument("tag")
    parser.add_argument("--notes", action="store_true", help="print the section of the changelog")
    arguments = parser.parse_args(words)
    try:
        package = package_of_tag(arguments.tag, ROOT)
        notes = notes_of(package.changelog.read_text(encoding="utf-8"), package.version)
    except SetupError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    print(notes if arguments.notes else f"package={package.name}\nversion={package.version}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
