"""Make the files of releases as CI does, or rehearse the release of all packages in a clone of this checkout."""

from __future__ import annotations

import argparse
import filecmp
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile

from tools.commands.docs import build_into_wheel
from tools.release.bump import bump_all, today
from tools.setup.environment import HATCH, installed_hatch, must_run, program_in, uv_variables
from tools.setup.running import SetupError, environment_with, run, say
from tools.setup.wheels import DIST
from tools.site.installed import INSTALLED
from tools.workspace import ROOT, Package, as_numbers, lowest_first, read_packages

NOTES = ROOT / "build" / "notes"


def main(arguments: argparse.Namespace) -> int:
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


def make(tag: str) -> None:
    """Build the source distribution of ``tag``'s package and, from that, its wheel into ``dist``; write its notes.

    Raises:
        SetupError: If the tag does not fit the source, removals are not announced, or two builds differ.
    """
    package, again = package_of(tag), ROOT / "build" / "again"
    installed_hatch()
    notes = notes_of(package)
    NOTES.mkdir(parents=True, exist_ok=True)
    (NOTES / f"{tag}.md").write_text(notes + breakage_of(package, notes), encoding="utf-8")
    for folder in (DIST, again):
        command = [program_in(HATCH, "uv"), "build", "--quiet", "--out-dir", folder, package.folder]
        must_run(command, environment_with(uv_variables()))
    stem = f"{package.import_name}-{package.version}"
    files = [f"{stem}-py3-none-any.whl", f"{stem}.tar.gz"]
    if filecmp.cmpfiles(DIST, again, files, shallow=False)[0] != files:
        raise SetupError(f"`{tag}`: two builds of one commit differ. Look for times or orders of files.")
    shutil.rmtree(again)
    has_site = f"{package.import_name}/site/index.html" in ZipFile(DIST / files[0]).namelist()
    if INSTALLED.is_relative_to(package.folder) and not has_site:
        raise SetupError(f"`{files[0]}` lacks the documentation: `python tools/dev.py docs --install`.")
    say(f"{tag}: {', '.join(files)}")


def package_of(tag: str) -> Package:
    """Return the package that ``tag`` releases, if its source has that version."""
    name, _, version = tag.rpartition("-v")
    package = read_packages().get(name)
    if package is None or package.version != version:
        has = f"the source of `{name}` has {package.version}" if package else f"there is no package `{name}`"
        raise SetupError(f"`{tag}` cannot be released: {has}.")
    return package


def notes_of(package: Package) -> str:
    """Return the section of the changelog about the version, which has a date."""
    text = package.changelog.read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(package.version)} \([\d-]+\)\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    if found is None or "## Unreleased" in text:
        raise SetupError(
            f"{package.changelog}: no section `## {package.version} (DATE)`, or one that is `Unreleased`."
            " `python -m tools.release.bump` dates it."
        )
    return found[1].strip() + "\n"


def breakage_of(package: Package, notes: str) -> str:
    """Return what griffe finds broken since the last release, as a section of the notes.

    Raises:
        SetupError: If a patch release breaks something, or another one without "Removed" or "Changed" in ``notes``.
    """
    listed = ["git", "tag", "--list", f"{package.name}-v*"]
    tags = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    versions = [tag.rpartition("-v")[2] for tag in tags if tag != f"{package.name}-v{package.version}"]
    last = max(versions, key=as_numbers, default=None)
    if last is None:
        return ""
    command = [str(program_in(HATCH, "uv")), "tool", "run", "griffe", "check", package.import_name]
    source = package.folder.relative_to(ROOT) / "src"
    command += ["--search", str(source), "--against", f"{package.name}-v{last}"]
    environ = environment_with({**uv_variables(), "NO_COLOR": "1"})
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    broken = done.stdout + done.stderr if done.returncode else ""
    if broken and as_numbers(package.version)[:2] == as_numbers(last)[:2]:
        raise SetupError(f"`{package.name}` {package.version} is a patch of {last}, but breaks:\n{broken}")
    if broken and not re.search(r"\*\*(?:Removed|Changed|Breaking)", notes):
        raise SetupError(f"The changelog of `{package.name}` announces nothing of what breaks:\n{broken}")
    return f"\n## What griffe finds changed since {last}\n\n```text\n{broken}```\n" if broken else ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tags", nargs="*", metavar="TAG", help="e.g. accel-data-v0.2.1; none: a rehearsal")
