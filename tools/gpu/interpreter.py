"""A Python that has torch and knows no package of this checkout: what lets it run them from their sources."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tools.setup.failures import SetupError
from tools.setup.running import environment_with, say
from tools.workspace import ROOT, dependency_group, read_packages, requirement_name

SITE = ROOT / "build" / "gpu" / "site"
_MISSING = """
import importlib.metadata, json, sys
def is_missing(name):
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return True
print(json.dumps([name for name in sys.argv[1:] if is_missing(name)]))
"""


def environ_of(python: str) -> dict[str, str]:
    """Return the variables that give ``python`` all packages, from their sources, and their tests' requirements.

    Missing packages are installed next to it with its pip, whose variables (``PIP_NO_INDEX``, ``PIP_FIND_LINKS``) hold.
    """
    packages = list(read_packages().values())
    for package in packages:
        folder = SITE / f"{package.import_name}-{package.version}.dist-info"
        folder.mkdir(parents=True, exist_ok=True)
        head = f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {package.version}\n"
        (folder / "METADATA").write_text(
            head + "".join(f"Requires-Dist: {one}\n" for one in package.dependencies)
        )
        points = {
            "console_scripts": package.project.get("scripts", {}),
            **package.project.get("entry-points", {}),
        }
        lines = [f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in names.items())
                 for group, names in points.items()]  # fmt: skip
        (folder / "entry_points.txt").write_text("\n".join(lines))
    program = SITE / "bin" / "accel"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!{python}\nimport sys\nfrom accel_launch.cli import main\nsys.exit(main())\n")
    program.chmod(0o755)
    sources = [ROOT, *(package.source.parent for package in packages), SITE, *_installed()]
    paths = [*map(str, sources), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = environment_with({"PYTHONPATH": os.pathsep.join(paths)})
    environ["PATH"] = os.pathsep.join([str(program.parent), environ["PATH"]])
    wanted = {requirement_name(each): each for package in packages for each in package.dependencies}
    wanted |= {
        requirement_name(each): each for group in ("test", "components") for each in dependency_group(group)
    }
    missing = _missing(python, [name for name in wanted if name not in read_packages()], environ)
    if missing:
        say(f"installing {', '.join(missing)} into {SITE.relative_to(ROOT)}")
        _install(python, [wanted[name] for name in missing], environ)
        found = [path for path in map(str, _installed()) if path not in paths]
        environ["PYTHONPATH"] = os.pathsep.join([*paths, *found])
    return environ


def _installed() -> list[Path]:
    return [path for kind in ("site", "dist") for path in (SITE / "pip").rglob(f"{kind}-packages")]


def _missing(python: str, names: Sequence[str], environ: dict[str, str]) -> list[str]:
    done = subprocess.run(
        [python, "-c", _MISSING, *names], env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SetupError(f"`{python}` does not run: {done.stderr.strip()}")
    missing: list[str] = json.loads(done.stdout)
    if "torch" in missing:
        raise SetupError(f"`{python}` has no torch. Name a Python that has one, or leave `--python` out.")
    return missing


def _install(python: str, requirements: Sequence[str], environ: dict[str, str]) -> None:
    """Install each requirement that pip finds; tests that need another one are skipped."""
    # With `--prefix`, and not `--target`, pip counts installed packages: torch is not installed again.
    pip = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--prefix",
        str(SITE / "pip"),
        "--disable-pip-version-check",
    ]
    done = subprocess.run([*pip, *requirements], env=environ, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    for requirement in requirements:
        done = subprocess.run([*pip, requirement], env=environ, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            say(f"not installed: {requirement} ({done.stderr.strip().splitlines()[-1:]})")
