"""Rehearse the release of every package in a clone of this checkout, or build those of given tags here, as CI does."""

from __future__ import annotations

import argparse
import datetime
import shutil
import sys
import tempfile
from pathlib import Path

from tools.commands.protocol import Command
from tools.release.bump import PARTS
from tools.release.rehearsal import clone_of, tag_releases
from tools.release.steps import make_releases, table
from tools.setup.failures import SetupError
from tools.setup.running import run, say, timed
from tools.setup.torch_release import OLDEST_AND_NEWEST
from tools.workspace import ROOT


def release(arguments: argparse.Namespace) -> int:
    if not arguments.tags:
        return rehearse(arguments)
    with timed("releasing"):
        releases = make_releases(
            arguments.tags,
            torch=arguments.torch or OLDEST_AND_NEWEST,
            smoke_only=arguments.smoke,
            handed_on=arguments.handed_on,
        )
    print(table(releases))
    return 0


def rehearse(arguments: argparse.Namespace) -> int:
    """Bump and tag in a clone, then run this command there with the tags."""
    folder = Path(tempfile.mkdtemp(prefix="accel-release-"))
    say(f"rehearsing in {folder}, a clone: nothing is changed here")
    clone = clone_of(ROOT, folder)
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    tags = tag_releases(clone, arguments.part, date=today)
    command: list[str | Path] = [sys.executable, clone / "tools" / "dev.py", "release", *tags]
    command += [word for each in arguments.torch for word in ("--torch", each)]
    command += ["--smoke"] if arguments.smoke else []
    command += ["--", *arguments.handed_on] if arguments.handed_on else []
    code = run(command, cwd=clone)
    if code != 0:
        raise SetupError(
            f"The rehearsal failed, see above. Its clone is kept in {folder}; delete it when done."
        )
    if arguments.keep:
        say(f"the files are in {clone / 'dist'} and {clone / 'build' / 'release'}")
    else:
        shutil.rmtree(folder)
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "tags", nargs="*", metavar="TAG", help="e.g. accel-data-v0.2.1: make this release here, into dist/"
    )
    parser.add_argument(
        "--part", choices=PARTS, default="minor", help="what a rehearsal bumps in open changelogs: minor"
    )
    parser.add_argument(
        "--torch",
        metavar="RELEASE",
        action="append",
        default=[],
        help=f"test the wheels on this release of torch, may be repeated: {' and '.join(OLDEST_AND_NEWEST)}",
    )
    parser.add_argument(
        "--smoke", action="store_true", help="run the smoke test only, not all tests (an hour)"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the clone, with the files, after success too"
    )


command = Command(
    help="rehearse a release of all packages in a clone (with TAGs: make their files here, as CI does)",
    run=release,
    add_arguments=add_arguments,
)
