"""Build wheels into ``dist/``: ``python -m tools.release.build [--sdist] [--into FOLDER] [PACKAGE …]``.

Needs hatchling. The folder is emptied once, before the first package; `hatch build --all --clean` would empty it before
each.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.setup.environment import shown
from tools.workspace import ROOT, read_packages

DIST = ROOT / "dist"


def main(words: Sequence[str]) -> int:
    """Build what ``words`` name, all packages if they name none; return the exit code."""
    packages = read_packages()
    parser = argparse.ArgumentParser(prog="python -m tools.release.build", description=__doc__)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE")
    parser.add_argument("--sdist", action="store_true", help="build source distributions too")
    parser.add_argument("--into", metavar="FOLDER", type=Path, default=DIST, help="where they go: dist/")
    arguments = parser.parse_args(words)
    unknown = sorted(set(arguments.packages) - packages.keys())
    if unknown:
        parser.error(f"there is no package `{unknown[0]}`; known: {', '.join(packages)}")
    folder = arguments.into.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    targets = ["-t", "wheel", *(["-t", "sdist"] if arguments.sdist else [])]
    for name in arguments.packages or packages:
        command = [sys.executable, "-m", "hatchling", "build", *targets, "-d", str(folder)]
        code = subprocess.run(command, cwd=packages[name].folder, check=False).returncode
        if code != 0:
            print(f"error: `{name}` could not be built", file=sys.stderr)
            return code
    for file in sorted(folder.iterdir()):
        print(f"  {shown(file)}  {file.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
