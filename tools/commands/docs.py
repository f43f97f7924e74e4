"""Build the documentation site into site/, or serve it while it is written."""

from __future__ import annotations

import argparse
import os

from tools.setup.environment import Environment
from tools.setup.running import run, say, timed
from tools.site.installed import install
from tools.workspace import ROOT, read_packages

SITE = ROOT / "site"


def main(arguments: argparse.Namespace) -> int:
    if arguments.serve:
        return mkdocs("serve", "--livereload", *arguments.handed_on)
    return build_into_wheel() if arguments.install else build(*arguments.handed_on)


def build_into_wheel() -> int:
    """Build the site and copy it to where wheels of accel-launch take it from; return the exit code."""
    code = build()
    if code == 0:
        (site_packages,) = Environment("docs").folder.glob("lib/python*/site-packages")
        install(SITE, site_packages)
    return code


def build(*words: str) -> int:
    """Build the site, which checks its links; return the exit code."""
    with timed("building the site"):
        code = mkdocs("build", "--strict", *words)
    if code == 0:
        say(f"the site is {SITE.as_uri()}/index.html")
    return code


def mkdocs(*words: str) -> int:
    """Run mkdocs, which finds our packages by their sources; return its exit code."""
    environment = Environment("docs").ensure()
    sources = [ROOT, *(package.folder / "src" for package in read_packages().values())]
    environ = environment.child_environ() | {
        "PYTHONPATH": os.pathsep.join(map(str, sources)),
        "NO_MKDOCS_2_WARNING": "1",  # an advertisement, which strict builds would take for a fault
    }
    return run([environment.python, "-m", "mkdocs", *words], cwd=ROOT, environ=environ)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--serve", action="store_true", help="serve it, and build it again whenever a page changes")
    about = "copy it to where `accel docs` and wheels of accel-launch find it"
    add("--install", action="store_true", help=about)
