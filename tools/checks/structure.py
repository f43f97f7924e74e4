"""Every package looks the same: names agree, nothing is missing, the version has one place, tests mirror src."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.checks.reporting import report
from tools.workspace import ROOT, Package, read_packages

VAGUE = re.compile(r"/src/(?!accel/utils/).*\b(utils?|helpers?|manager|common|misc)\b(/|\.py$)")
"""Names without meaning; users know `accel.utils`, which hands names on."""
WHOLE_PACKAGE = {
    "accel-bigmodel/tests/test_never_silently_wrong.py",
    "accel-data/tests/test_resume.py",
    "accel-launch/tests/config/test_fuzz.py",
    "accel-launch/tests/config/test_peer_files.py",
    "accel-launch/tests/reports/test_golden_crashes.py",
    "accel-launch/tests/test_flag_snapshot.py",
    "accel-launch/tests/test_flags.py",
    "accel-launch/tests/test_launchers_for_real.py",
    "accel-launch/tests/test_owning.py",
    "accel-launch/tests/test_precedence.py",
    "accel/tests/checkpoints/test_malicious.py",
    "accel/tests/test_changes_between_steps.py",
    "accel/tests/test_interface.py",
    "accel/tests/test_training.py",
}
"""Tests of everything a package offers, which mirror no single file."""


def parts(package: Package) -> Iterator[str]:
    """Yield what is missing or in the wrong place."""
    if package.name != package.folder.name:
        yield f"{package.folder}: the distribution is called `{package.name}`"
    for folder in (package.folder / "src").iterdir():
        if folder != package.source and folder.name != "__pycache__" and folder.suffix != ".egg-info":
            yield f"{folder}: does not belong here"
    needed = (package.folder / name for name in ("README.md", "CHANGELOG.md", "LICENSE"))
    for file in (*needed, package.source / "__init__.py", package.source / "py.typed"):
        if not file.is_file() or (file.name != "py.typed" and not file.read_text(encoding="utf-8").strip()):
            yield f"{file}: missing or empty"
    for _, file in package.modules():
        if VAGUE.search(file.as_posix()):
            yield f"{file}: its name does not say what is in it"


def version(package: Package) -> Iterator[str]:
    """Yield versions besides the one in ``__init__.py``, which has a section in the changelog."""
    if "version" not in package.project.get("dynamic", []):
        yield f"{package.folder}/pyproject.toml: the version belongs into src/{package.import_name}/__init__.py"
    for _, file in package.modules():
        text = file.read_text(encoding="utf-8")
        if file != package.source / "__init__.py" and re.search(r"^__version__\s*=", text, re.MULTILINE):
            yield f"{file}: a second `__version__`"
    if f"## {package.version}" not in package.changelog.read_text(encoding="utf-8"):
        yield f"{package.changelog}: no section `## {package.version}`"


def tests(package: Package) -> Iterator[str]:
    """Yield tests, such as ``tests/a/test_b_aspect.py``, for which there is no module or folder ``a/b``."""
    modules = {file.relative_to(package.source).with_suffix("") for _, file in package.modules()}
    names = {name.as_posix().replace("__", "") for path in modules for name in (path, path.parent)}
    names |= {package.import_name, "face", "public_face", "readme"}
    files = sorted(package.tests.rglob("*.py"))
    if not any(file.name.startswith("test_") for file in files):
        yield f"{package.tests}: no tests"
    for file in files:
        place, words = file.relative_to(package.tests).parent, file.stem.removeprefix("test_").split("_")
        mirrored = {(place / "_".join(words[:count])).as_posix() for count in range(1, len(words) + 1)}
        is_test = (
            file.name.startswith("test_")
            and f"{package.name}/{file.relative_to(package.folder)}" not in WHOLE_PACKAGE
        )
        if file.name == "__init__.py":
            yield f"{file}: test folders have no __init__.py"
        elif is_test and not names & mirrored:
            yield f"{file}: nothing in src/{package.import_name} is mirrored by it"


def stubs(package: Package) -> Iterator[str]:
    """Yield definitions in a module with a stub next to it: type checkers read only the stub."""
    modules = dict(package.modules())
    for name, stub in package.stubs():
        for node in ast.parse(modules[name].read_text(encoding="utf-8") if name in modules else "").body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name != "__getattr__":
                yield f"{modules[name]}:{node.lineno}: {stub.name} hides `{node.name}` from type checkers"


def problems(root: Path) -> list[str]:
    """Return everything in the packages of ``root`` that is not as it should be."""
    lines = [
        line
        for package in read_packages(root).values()
        for rule in (parts, version, tests, stubs)
        for line in rule(package)
    ]
    for folder in sorted(path for path in (root / "packages").iterdir() if path.is_dir()):
        if not (folder / "pyproject.toml").is_file():
            lines.append(f"{folder}: no pyproject.toml")
    return [line.replace(f"{root}/", "") for line in lines]


if __name__ == "__main__":
    sys.exit(report(problems(ROOT)))
