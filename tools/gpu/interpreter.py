"""A Python that has torch and knows no package of this checkout: what lets it run them from their sources."""

from __future__ import annotations

import os

from tools.environments import CONSTRAINTS, inputs_of
from tools.running import environment_with, run
from tools.workspace import ROOT, dependency_group, lowest_first, read_packages

SITE = ROOT / "build" / "gpu" / "site"


def environ_of(python: str) -> dict[str, str]:
    """Return the variables with which ``python`` has all packages, from their sources, and what their tests need.

    They are installed next to it with its pip, whose own variables (``PIP_NO_INDEX``, ``PIP_FIND_LINKS``) hold; tests
    that need what pip does not find are skipped.
    """
    stamp, inputs = SITE / "made.txt", f"{python} {inputs_of(CONSTRAINTS)}"
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != inputs:
        folders = [str(package.folder) for package in lowest_first(read_packages())]
        wanted = [*folders, *dependency_group("test"), *dependency_group("components")]
        if _install(python, *wanted) != 0:  # then without what pip does not find
            for each in wanted:
                _install(python, each)
        stamp.write_text(inputs, encoding="utf-8")
    return _environ()


def _install(python: str, *requirements: str) -> int:
    # With `--prefix`, and not `--target`, pip counts what is installed already: torch is not installed again.
    command = [python, "-m", "pip", "install", "--quiet", "--prefix", SITE, *requirements]
    return run(command, environ=_environ())


def _environ() -> dict[str, str]:
    installed = [path for kind in ("site", "dist") for path in SITE.rglob(f"{kind}-packages")]
    modules = [*map(str, (ROOT, *ROOT.glob("packages/*/src"), *installed)), os.environ.get("PYTHONPATH")]
    programs = [str(SITE / "bin"), str(SITE / "local" / "bin"), os.environ["PATH"]]
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, modules)), "PATH": os.pathsep.join(programs)}
    return environment_with(paths)
