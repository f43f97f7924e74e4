"""A clone of this checkout that is ready to be released."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools.release.bump import bump_all
from tools.release.changelog import has_open_section
from tools.setup.failures import SetupError
from tools.setup.running import say
from tools.workspace import lowest_first, read_packages


def git(folder: Path, *words: str) -> str:
    """Run git in ``folder`` and return its output. Raises ``SetupError`` with git's message."""
    identity = ["-c", "user.name=A rehearsal", "-c", "user.email=rehearsal@localhost"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SetupError(f"`git {' '.join(words)}` failed in {folder}: {done.stderr.strip()}")
    return done.stdout.strip()


def clone_of(root: Path, folder: Path) -> Path:
    """Clone the commit that is checked out in ``root``, with all tags, into ``folder``; return the clone."""
    if git(root, "status", "--porcelain", "--untracked-files=no"):
        say("this checkout has changes that are not committed: the rehearsal leaves them out")
    commit = git(root, "rev-parse", "HEAD")
    clone = folder / "accel"
    git(root, "clone", "--quiet", "--no-checkout", str(root), str(clone))
    git(clone, "checkout", "--quiet", "--detach", commit)
    return clone


def tag_releases(clone: Path, part: str, *, date: str) -> list[str]:
    """Bump every package of ``clone`` that has an open section, and tag packages without a tag; return the tags.

    Raises:
        SetupError: If nothing is to be released.
    """
    packages = read_packages(clone)
    if any(has_open_section(each.changelog.read_text(encoding="utf-8")) for each in packages.values()):
        for report in bump_all(clone, part, date=date):
            say(report.splitlines()[0])
        git(clone, "commit", "--quiet", "--all", "--message", "Release")
    known = set(git(clone, "tag", "--list").split())
    tags = [f"{each.name}-v{each.version}" for each in lowest_first(read_packages(clone))]
    new = [tag for tag in tags if tag not in known]
    if not new:
        raise SetupError(
            "Every version has its tag, and no changelog an open section: nothing is to be released."
        )
    for tag in new:
        git(clone, "tag", tag)
    return new
