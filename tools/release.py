"""The files of releases, made as CI does, and the next versions of packages."""

from __future__ import annotations

import argparse
import datetime
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

from tools.environments import HATCH, installed_hatch, program_in, uv_variables
from tools.running import SetupError, environment_with, must_run, say
from tools.site.build import INSTALLED, build_site_for_wheel
from tools.wheels import DIST
from tools.workspace import ROOT, Package, as_numbers, lowest_first, read_packages

NOTES = ROOT / "build" / "notes"
OPEN = re.compile(r"^## Unreleased[ \t]*$(?=\s+[^\s#])", re.MULTILINE)
"""The heading of an open section of a changelog with some text."""


def release(arguments: argparse.Namespace) -> int:
    """Give packages their next version with --bump, or make the files of released ones, as CI does for a tag."""
    if arguments.bump:
        date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        print("\n".join(bump_all(ROOT, arguments.bump, date=date, names=arguments.names)))
        return 0
    if not arguments.names:
        raise SetupError(
            "Name the tags of the releases, such as accel-data-v0.2.1; `--bump PART` prints them."
        )
    shutil.rmtree(DIST, ignore_errors=True)
    if any(tag.startswith("accel-launch-v") for tag in arguments.names) and build_site_for_wheel() != 0:
        raise SetupError("The documentation could not be built; see mkdocs's message above.")
    for tag in arguments.names:
        make(tag)
    return 0


def bump_all(root: Path, part: str, *, date: str, names: Sequence[str] = ()) -> list[str]:
    """Bump the packages with ``names``, or every one with an open section, and return the tags, the lowest first."""
    ordered = lowest_first(read_packages(root))
    chosen = [each.name for each in ordered if (each.name in names if names else is_open(each))]
    return [bump(root, name, part, date=date) for name in chosen]


def bump(root: Path, name: str, part: str, *, date: str) -> str:
    """Give package ``name`` under ``root`` its next version, and return its tag.

    Sets the version with hatchling, dates the open section of the changelog, and has dependents require that version:
    their next releases are tested with no other.

    Raises:
        SetupError: If its changelog has no open section, or that of a sibling has one, which it may need.
    """
    packages = read_packages(root)
    package = packages[name]
    if not is_open(package):
        raise SetupError(f"`{name}`: the changelog has no changes under `## Unreleased`. Write them there.")
    needed = (package.required_names | package.extra_names) & packages.keys()
    if unreleased := [each for each in needed if is_open(packages[each])]:
        raise SetupError(
            f"`{name}` may need changes of {', '.join(unreleased)} that were not released. Bump that first."
        )
    installed_hatch()
    command = [str(program_in(HATCH, "python")), "-m", "hatchling", "version", part]
    subprocess.run(command, cwd=package.folder, stdout=subprocess.DEVNULL, check=True)
    version = read_packages(root)[name].version
    text = package.changelog.read_text(encoding="utf-8")
    package.changelog.write_text(OPEN.sub(f"## {version} ({date})", text, count=1), encoding="utf-8")
    pattern = rf'("{re.escape(name)}(?:\[[^\]]*\])?~=)[\d.]+"'
    for project in root.glob("packages/*/pyproject.toml"):
        text = project.read_text(encoding="utf-8")
        project.write_text(re.sub(pattern, rf'\g<1>{version}"', text), encoding="utf-8")
    return f"{name}-v{version}"


def is_open(package: Package) -> bool:
    """Return True if the changelog has changes that were not released."""
    return OPEN.search(package.changelog.read_text(encoding="utf-8")) is not None


def make(tag: str) -> None:
    """Build the source distribution of ``tag``'s package and, from that, its wheel into ``dist``; write its notes.

    Raises:
        SetupError: If the tag does not fit the source, or removals are not announced.
    """
    package = package_of(tag)
    installed_hatch()
    notes = notes_of(package)
    NOTES.mkdir(parents=True, exist_ok=True)
    (NOTES / f"{tag}.md").write_text(notes + breakage_of(package, notes), encoding="utf-8")
    command = [program_in(HATCH, "uv"), "build", "--quiet", "--out-dir", DIST, package.folder]
    must_run(command, environment_with(uv_variables()))
    wheel = DIST / f"{package.import_name}-{package.version}-py3-none-any.whl"
    has_site = f"{package.import_name}/site/index.html" in ZipFile(wheel).namelist()
    if INSTALLED.is_relative_to(package.folder) and not has_site:
        raise SetupError(f"`{wheel.name}` lacks the documentation: `python tools/dev.py docs --install`.")
    say(f"{tag}: {wheel.name}")


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
            " `python tools/dev.py release --bump PART` dates it."
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
