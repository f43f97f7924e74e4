"""A Python that has torch and knows no package of this checkout: what lets it run them from their sources."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tools.setup.running import SetupError, environment_with, say
from tools.workspace import ROOT, Package, dependency_group, read_packages, requirement_name

SITE = ROOT / "build" / "gpu" / "site"
_MISSING = """
import importlib.metadata, sys, torch
there = {each.name.lower().replace("_", "-") for each in importlib.metadata.distributions()}
print(*(name for name in sys.argv[1:] if name not in there))
"""


def environ_of(python: str) -> dict[str, str]:
    """Return the variables with which ``python`` has all packages, from their sources, and what their tests need.

    What it lacks is installed next to it with its pip, whose own variables (``PIP_NO_INDEX``, ``PIP_FIND_LINKS``)
    hold; tests that need what pip does not find are skipped.
    """
    packages = read_packages()
    for package in packages.values():
        _describe(package)
    program = SITE / "bin" / "accel"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!{python}\nimport sys\nfrom accel_launch.cli import main\nsys.exit(main())\n")
    program.chmod(0o755)
    wanted = [each for package in packages.values() for each in package.dependencies]
    wanted += [*dependency_group("test"), *dependency_group("components")]
    names = {requirement_name(each): each for each in wanted}
    asked = [python, "-c", _MISSING, *names.keys() - packages.keys()]
    done = subprocess.run(asked, env=_environ(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SetupError(f"`{python}` has no torch. Name a Python that has one. {done.stderr.strip()}")
    for name in done.stdout.split():
        say(f"installing {names[name]} into {SITE.relative_to(ROOT)}")
        # With `--prefix`, and not `--target`, pip counts what is installed already: torch is not installed again.
        command = [python, "-m", "pip", "install", "--quiet", "--prefix", str(SITE / "pip"), names[name]]
        subprocess.run(command, env=_environ(), check=False)
    return _environ()


def _describe(package: Package) -> None:
    """Write what an installation would say of a package: its version, what it requires, its entry points."""
    folder = SITE / f"{package.import_name}-{package.version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    head = ["Metadata-Version: 2.1", f"Name: {package.name}", f"Version: {package.version}"]
    lines = [*head, *(f"Requires-Dist: {each}" for each in package.dependencies)]
    (folder / "METADATA").write_text("\n".join(lines))
    scripts, points = package.project.get("scripts", {}), package.project.get("entry-points", {})
    lines = []
    for group, names in {"console_scripts": scripts, **points}.items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in names.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines))


def _environ() -> dict[str, str]:
    sources = [package.source.parent for package in read_packages().values()]
    installed: list[Path] = [
        path for kind in ("site", "dist") for path in (SITE / "pip").rglob(f"{kind}-packages")
    ]
    earlier = filter(None, [os.environ.get("PYTHONPATH")])
    paths = os.pathsep.join(map(str, (ROOT, *sources, SITE, *installed, *earlier)))
    return environment_with({"PYTHONPATH": paths, "PATH": f"{SITE / 'bin'}{os.pathsep}{os.environ['PATH']}"})
