"""May this commit be released? ``python -m tools.release.provenance`` in the checkout of a tag; needs git and gh.

It must be part of ``origin/main``, and CI must have passed for exactly this commit.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.setup.failures import SetupError
from tools.workspace import ROOT

WORKFLOW = "ci.yml"


def require_on_main(root: Path) -> str:
    """Return the commit that is checked out in ``root``.

    Raises:
        SetupError: If ``origin/main`` is not known, or does not contain it.
    """
    commit = _git(root, "rev-parse", "HEAD").stdout.strip()
    if _git(root, "rev-parse", "--verify", "--quiet", "origin/main").returncode != 0:
        raise SetupError("There is no `origin/main` here. `git fetch origin main` gets it.")
    if _git(root, "merge-base", "--is-ancestor", commit, "origin/main").returncode != 0:
        raise SetupError(f"{commit} is not on origin/main. Merge it, then tag the commit on main.")
    return commit


def require_green(commit: str, runs: Sequence[Mapping[str, str]]) -> None:
    """Raise ``SetupError`` unless the newest of ``runs``, as gh lists them for ``commit``, has passed."""
    if not runs:
        raise SetupError(
            f"CI ({WORKFLOW}) never ran for {commit}. Push it to main and wait until it has passed."
        )
    newest = max(runs, key=lambda run: run["createdAt"])
    if (newest["status"], newest["conclusion"]) != ("completed", "success"):
        ending = newest["conclusion"] or newest["status"]
        raise SetupError(f"CI ({WORKFLOW}) for {commit}: {ending}. Push the tag again once it has passed.")


def runs_of(commit: str, *, root: Path) -> list[dict[str, str]]:
    """Return the runs of CI for ``commit``, as gh lists them.

    Raises:
        SetupError: If gh fails; its words are in the text.
    """
    command = ["gh", "run", "list", "--commit", commit, "--workflow", WORKFLOW, "--event", "push"]
    done = subprocess.run(
        [*command, "--json", "status,conclusion,createdAt"],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise SetupError(f"`gh run list` failed: {done.stderr.strip()}")
    return list(json.loads(done.stdout))


def _git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)


def main() -> int:
    """Check the commit of this checkout and print the result."""
    try:
        commit = require_on_main(ROOT)
        require_green(commit, runs_of(commit, root=ROOT))
    except SetupError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    print(f"{commit} is on main, and CI has passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
