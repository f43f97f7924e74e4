"""The steps of a release, from tags to files that can be published: the same in CI and in a rehearsal."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tools.release.artifacts import (
    Artifacts,
    artifacts_of,
    require_complete_wheel,
    require_same_bytes,
    require_same_contents,
    sha256_of,
    unpack,
)
from tools.release.build import DIST
from tools.release.changelog import notes_of
from tools.release.places import AGAIN, SIBLINGS, TESTED, notes_file, sbom_file
from tools.release.surface_changes import require_announced_removals
from tools.release.tag import package_of_tag
from tools.release.trial import build, try_installed
from tools.setup.environment import Environment
from tools.setup.failures import SetupError
from tools.setup.presets import releasing, wheel_trial
from tools.setup.running import run, say
from tools.site.installed import INSTALLED
from tools.workspace import ROOT, Package, read_packages, requirement_name, with_siblings


@dataclass
class Release:
    """A released package, and its passed checks."""

    tag: str
    package: Package
    checks: list[str] = field(default_factory=list)

    @property
    def artifacts(self) -> Artifacts:
        return artifacts_of(self.package, DIST)

    @property
    def has_site(self) -> bool:
        return INSTALLED.is_relative_to(self.package.folder)


@contextmanager
def step(who: str, name: str) -> Iterator[None]:
    """Print the name of a step; a problem in it names the package and the step."""
    say(f"{who}: {name}")
    try:
        yield
    except SetupError as problem:
        raise SetupError(f"{who}: {name}: {problem}") from problem


def make_releases(
    tags: Sequence[str], *, torch: Sequence[str], smoke_only: bool, handed_on: Sequence[str]
) -> list[Release]:
    """Make everything that the releases of ``tags`` publish, and check it.

    Wheels and source distributions go to ``dist/``, other files to ``build/release``.

    Args:
        tags: Such as ``accel-data-v0.2.1``; they need not exist yet; the checkout is released.
        torch: The releases of torch that the wheels are tried on, the oldest first.
        smoke_only: Run the smoke test, and not the tests of the packages.
        handed_on: More arguments for pytest.

    Raises:
        SetupError: At the first problem. It names the package and the step.
    """
    releases = [read_tag(tag) for tag in tags]
    if any(release.has_site for release in releases):
        install_site()
    build_all(releases)
    for release in releases:
        check_artifacts(release)
    check_metadata(releases)
    for number in torch:
        try_on(number, releases, smoke_only=smoke_only, handed_on=handed_on)
    describe(releases, torch)
    return releases


def read_tag(tag: str) -> Release:
    """Check ``tag`` against the source, and write the notes of its release."""
    with step(tag, "tag, changelog and public surface"):
        package = package_of_tag(tag, ROOT)
        notes = notes_of(package.changelog.read_text(encoding="utf-8"), package.version)
        surface = require_announced_removals(package, notes, root=ROOT)
        file = notes_file(package)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(notes, encoding="utf-8")
    return Release(tag, package, [f"notes of {len(notes.splitlines())} lines", f"surface: {surface}"])


def install_site() -> None:
    """Build the documentation site into the package that brings it."""
    with step("site", "build"):
        if run([sys.executable, ROOT / "tools" / "dev.py", "docs", "--install"], cwd=ROOT) != 0:
            raise SetupError("The documentation could not be built; see mkdocs's message above.")


def build_all(releases: Sequence[Release]) -> None:
    """Build wheels and source distributions twice, from the checkout."""
    names = [release.package.name for release in releases]
    with step(", ".join(names), "build"):
        build(names, DIST, sdist=True)
        build(names, AGAIN, sdist=True)


def check_artifacts(release: Release) -> None:
    """Compare the builds of one package, and look into its files."""
    package, artifacts = release.package, release.artifacts
    with step(package.name, "the same bytes from two builds"):
        require_same_bytes(artifacts, artifacts_of(package, AGAIN))
    with step(package.name, "a wheel from the source distribution"):
        with tempfile.TemporaryDirectory(prefix="accel-sdist-") as folder:
            require_same_contents(artifacts.wheel, wheel_of_sdist(artifacts.sdist, Path(folder)))
    with step(package.name, "contents of the wheel"):
        page = (INSTALLED / "index.html").relative_to(package.source.parent) if release.has_site else None
        require_complete_wheel(package, artifacts.wheel, also=[page.as_posix()] if page else [])
    release.checks += ["two builds alike", "sdist builds the same wheel", "contents"]


def check_metadata(releases: Sequence[Release]) -> None:
    """Check the metadata and the rendered READMEs with twine, as PyPI would."""
    with step(", ".join(release.package.name for release in releases), "metadata and README"):
        python: str | Path = releasing().ensure().python
        files = [file for release in releases for file in release.artifacts.files]
        if run([python, "-m", "twine", "--no-color", "check", "--strict", *files], cwd=ROOT) != 0:
            raise SetupError("twine reports a problem in the metadata or the README; see its message above.")
    for release in releases:
        release.checks.append("metadata and README")


def wheel_of_sdist(sdist: Path, folder: Path) -> Path:
    """Build a wheel from ``sdist`` in ``folder`` and return it."""
    python = releasing().ensure().python
    command: list[str | Path] = [python, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "wheel"]
    if run(command, cwd=unpack(sdist, folder)) != 0:
        raise SetupError(f"`{sdist.name}` builds no wheel; see hatchling's message above.")
    (wheel,) = (folder / "wheel").glob("*.whl")
    return wheel


def try_on(torch: str, releases: Sequence[Release], *, smoke_only: bool, handed_on: Sequence[str]) -> None:
    """Install the wheels into an empty environment with ``torch`` and test them there."""
    packages = read_packages()
    released = {release.package.name for release in releases}
    needed = {each.name for name in released for each in with_siblings(packages, name)}
    wheels = [release.artifacts.wheel for release in releases]
    with step(", ".join(sorted(released)), f"install and test with torch {torch}"):
        if needed - released:
            wheels += build(sorted(needed - released), SIBLINGS)
        environment = wheel_trial(wheels, torch=torch)
        environment.remove()
        environment.ensure()
        versions = installed_versions(environment)
        file = tested_file(torch)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(versions, indent=1), encoding="utf-8")
        tried = [release.package for release in releases]
        results = try_installed(environment, tried, handed_on, smoke_only=smoke_only)
        failed = [f"{name} (exit {code})" for name, code in results.items() if code != 0]
        if failed:
            raise SetupError(
                f"Failed: {', '.join(failed)}; see pytest's output above."
                f" Again: `python tools/dev.py wheels --torch {torch}`"
            )
        environment.remove()
    done = "smoke test" if smoke_only else "smoke test, tests"
    for release in releases:
        release.checks.append(f"torch {versions['torch']}: {done}")


def installed_versions(environment: Environment) -> dict[str, str]:
    """Return the version of every distribution that is installed in ``environment``."""
    command = [
        str(environment.python),
        "-m",
        "pip",
        "list",
        "--format",
        "json",
        "--disable-pip-version-check",
    ]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {requirement_name(each["name"]): each["version"] for each in json.loads(listed)}


def tested_file(torch: str) -> Path:
    """Return where it is written which versions were tested together with ``torch``."""
    return TESTED / f"torch-{torch}.json"


def describe(releases: Sequence[Release], torch: Sequence[str]) -> None:
    """Write the SBOM of each release."""
    names = [release.package.name for release in releases]
    with step(", ".join(names), "SBOM"):
        tested = [word for number in torch for word in ("--tested", str(tested_file(number)))]
        python: str | Path = releasing().ensure().python
        if run([python, "-m", "tools.release.sbom", *tested, *names], cwd=ROOT) != 0:
            raise SetupError("The SBOM could not be written; the reason is above.")
    for release in releases:
        release.checks.append("CycloneDX 1.6")


def table(releases: Sequence[Release]) -> str:
    """Return a description of the release, package by package."""
    return "\n".join(
        entry(release, [*release.artifacts.files, sbom_file(release.package)]) for release in releases
    )


def entry(release: Release, files: Sequence[Path]) -> str:
    """Return version and tag of a release, its files with size and digest, and its checks."""
    lines = [f"{release.package.name} {release.package.version}  tag {release.tag}"]
    for file in files:
        lines.append(f"  {file.name:<48} {file.stat().st_size:>9,} B  sha256 {sha256_of(file)}")
    return "\n".join([*lines, f"  checked: {'; '.join(release.checks)}"])
