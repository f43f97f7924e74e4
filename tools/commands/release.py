"""Make the files of releases as CI does, or rehearse the release of all packages in a clone of this checkout."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.commands.docs import build_into_wheel
from tools.commands.protocol import Command
from tools.release.bump import bump_all, today
from tools.release.make import make
from tools.setup.running import SetupError, run, say
from tools.setup.wheels import DIST
from tools.workspace import ROOT, lowest_first, read_packages


def release(arguments: argparse.Namespace) -> int:
    if not arguments.tags:
        return rehearse()
    shutil.rmtree(DIST, ignore_errors=True)
    if any(tag.startswith("accel-launch-v") for tag in arguments.tags) and build_into_wheel() != 0:
        raise SetupError("The documentation could not be built; see mkdocs's message above.")
    for tag in arguments.tags:
        make(tag)
    return 0


def rehearse() -> int:
    """Bump and tag in a clone, then run this command there with the tags."""
    folder = Path(tempfile.mkdtemp(prefix="accel-release-"))
    say(f"rehearsing in {folder}, a clone of the last commit")
    git = ["git", "-c", "user.name=A rehearsal", "-c", "user.email=rehearsal@localhost"]
    subprocess.run([*git, "clone", "--quiet", ROOT, folder], check=True)
    bump_all(folder, "minor", date=today())
    subprocess.run([*git, "commit", "--quiet", "--all", "--message", "Release"], cwd=folder, check=True)
    tags = [f"{each.name}-v{each.version}" for each in lowest_first(read_packages(folder))]
    code = run([sys.executable, folder / "tools" / "dev.py", "release", *tags], cwd=folder)
    if code == 0:
        shutil.rmtree(folder)
    return code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tags", nargs="*", metavar="TAG", help="e.g. accel-data-v0.2.1; none: a rehearsal")


command = Command(
    help="rehearse a release of all packages in a clone (with TAGs: make their files here, as CI does)",
    run=release,
    add_arguments=add_arguments,
)
