"""The documentation site, built or served, and the copy that a wheel brings."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from tools.environments import Environment
from tools.running import SetupError, run, say
from tools.workspace import ROOT, read_packages

SITE = ROOT / "site"
INSTALLED = ROOT / "packages" / "accel-launch" / "src" / "accel_launch" / "site"
"""Where `accel docs` looks for a copy, and from where wheels take it."""
NOT_INSTALLED = ("*.map", "lunr", "search_index.json", "sitemap.xml*")
"""Files that only a server, or a reader of another language, would need."""
SHIPPED = ("mkdocs", "mkdocs_material", "mkdocstrings", "mkdocstrings_python")
"""Distributions whose scripts and styles are part of the site."""
LUNR = Path(__file__).with_name("lunr_license.txt")
"""The license of the search, which Material has inside a separate script."""


def docs(arguments: argparse.Namespace) -> int:
    """Build the documentation site into site/, or serve it while it is written."""
    if arguments.serve:
        return mkdocs("serve", "--livereload", *arguments.handed_on)
    return build_site_for_wheel() if arguments.install else build_site(*arguments.handed_on)


def build_site(*words: str) -> int:
    """Build the site, which checks its links; return the exit code."""
    code = mkdocs("build", "--strict", *words)
    if code == 0:
        say(f"the site is {SITE.as_uri()}/index.html")
    return code


def build_site_for_wheel() -> int:
    """Build the site and copy it to where wheels of accel-launch take it from; return the exit code."""
    code = build_site()
    if code == 0:
        (site_packages,) = Environment("docs").folder.glob("lib/python*/site-packages")
        install(SITE, site_packages)
    return code


def mkdocs(*words: str) -> int:
    """Run mkdocs, which finds our packages by their sources; return its exit code."""
    environment = Environment("docs").ensure()
    sources = [ROOT, *(package.folder / "src" for package in read_packages().values())]
    environ = environment.child_environ() | {
        "PYTHONPATH": os.pathsep.join(map(str, sources)),
        "NO_MKDOCS_2_WARNING": "1",  # an advertisement, which strict builds would take for a fault
    }
    return run([environment.python, "-m", "mkdocs", *words], environ=environ)


def install(site: Path, site_packages: Path, *, into: Path = INSTALLED) -> None:
    """Copy ``site`` to where wheels take it from, with the licenses of the code that it ships.

    Args:
        site: The built site.
        site_packages: Folder of the distributions that built it.
        into: The folder to write; its content is deleted first.

    Raises:
        SetupError: If a distribution has no file with its license.
    """
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(site, into, ignore=shutil.ignore_patterns(*NOT_INSTALLED))
    (into / "licenses").mkdir()
    shutil.copy(LUNR, into / "licenses" / "lunr.txt")
    for name in SHIPPED:
        licenses = sorted(site_packages.glob(f"{name}-[0-9]*.dist-info/licenses/LICENSE*"))
        if not licenses:
            raise SetupError(f"`{name}` is installed in {site_packages} without a file with its license.")
        shutil.copy(licenses[0], into / "licenses" / f"{name}.txt")
