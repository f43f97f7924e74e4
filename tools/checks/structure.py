"""Every package looks the same: names agree, nothing is missing, tests mirror src, one door to os.environ."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.checks.reporting import report
from tools.workspace import ROOT, Package, read_packages

VAGUE = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}
USER_PATHS = {"accel/src/accel/utils"}
"""Vague names that users know and import from; these files only hand names on."""

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

DOOR = "accel_state/environment/"


def names_agree(package: Package) -> Iterator[str]:
    """Folder, distribution and import name are one name."""
    if package.name != package.folder.name:
        yield f"{package.folder}: the distribution is called `{package.name}`"
    if not (package.source / "__init__.py").is_file():
        yield f"{package.folder}: src/{package.import_name}/__init__.py is missing"
    others = [
        path.name for path in (package.folder / "src").iterdir() if path.is_dir() and path != package.source
    ]
    for name in sorted(others):
        if name != "__pycache__" and not name.endswith(".egg-info"):
            yield f"{package.folder}/src: `{name}` does not belong here"


def files_are_there(package: Package) -> Iterator[str]:
    """README, changelog, license, py.typed and tests exist and are not empty."""
    for name in ("README.md", "CHANGELOG.md", "LICENSE"):
        file = package.folder / name
        if not file.is_file() or not file.read_text(encoding="utf-8").strip():
            yield f"{file}: missing or empty"
    if not (package.source / "py.typed").is_file():
        yield f"{package.source}/py.typed: missing"
    if not any(package.tests.rglob("test_*.py")):
        yield f"{package.tests}: no tests"


def version_has_one_place(package: Package) -> Iterator[str]:
    """The version stands in ``__init__.py`` alone, is read from there, and has a section in the changelog."""
    data = tomllib.loads((package.folder / "pyproject.toml").read_text(encoding="utf-8"))
    if "version" in data["project"] or "version" not in data["project"].get("dynamic", []):
        yield f"{package.folder}/pyproject.toml: version belongs into src/{package.import_name}/__init__.py"
    for _, file in package.modules():
        if file == package.source / "__init__.py":
            continue
        if re.search(r"^__version__\s*=", file.read_text(encoding="utf-8"), re.MULTILINE):
            yield f"{file}: a second `__version__`"
    changelog = package.folder / "CHANGELOG.md"
    if changelog.is_file() and f"## {package.version}" not in changelog.read_text(encoding="utf-8"):
        yield f"{changelog}: no section `## {package.version}`"


def mirrored_names(package: Package) -> set[str]:
    """Return what a test may mirror, relative to the source: modules, folders, the face, the README."""
    names = {file.relative_to(package.source).with_suffix("").as_posix() for _, file in package.modules()}
    folders = {Path(name).parent.as_posix() for name in names} - {"."}
    return (
        {name.replace("__", "") for name in names}
        | folders
        | {package.import_name, "face", "public_face", "readme"}
    )


def tests_mirror_source(package: Package) -> Iterator[str]:
    """``tests/a/test_b.py`` or ``tests/a/test_b_<aspect>.py`` mirrors ``src/…/a/b.py`` or folder ``b``."""
    names = mirrored_names(package)
    for test in sorted(package.tests.rglob("test_*.py")):
        place = test.relative_to(package.tests).with_suffix("")
        words = place.name.removeprefix("test_").split("_")
        candidates = [
            (place.parent / "_".join(words[:count])).as_posix() for count in range(1, len(words) + 1)
        ]
        is_whole = test.relative_to(package.folder.parent).as_posix() in WHOLE_PACKAGE
        if not is_whole and not any(candidate in names for candidate in candidates):
            yield f"{test}: nothing in src/{package.import_name} is mirrored by it"
    for stray in sorted(package.tests.rglob("__init__.py")):
        yield f"{stray}: test folders have no __init__.py"


def names_are_clear(package: Package) -> Iterator[str]:
    """No file or folder has a name without meaning."""
    for _, file in package.modules():
        parts = file.relative_to(package.source).with_suffix("").parts
        place = file.relative_to(package.folder.parent).as_posix()
        if VAGUE & set(parts) and not any(place.startswith(path) for path in USER_PATHS):
            yield f"{file}: `{next(iter(VAGUE & set(parts)))}` does not say what is in it"


def stubs_hide_no_code(package: Package) -> Iterator[str]:
    """A module with a stub next to it has no definitions: type checkers read only the stub."""
    modules = dict(package.modules())
    for name, stub in package.stubs():
        tree = ast.parse(modules[name].read_text(encoding="utf-8") if name in modules else "")
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name != "__getattr__":
                yield f"{modules[name]}:{node.lineno}: {stub.name} hides `{node.name}` from type checkers"


def environment_uses(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that touch the process environment."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            if node.attr in {"environ", "environb", "getenv", "putenv", "unsetenv"}:
                yield node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            if any(
                alias.name in {"environ", "environb", "getenv", "putenv", "unsetenv"} for alias in node.names
            ):
                yield node.lineno


def environment_has_one_door(package: Package) -> Iterator[str]:
    """Nothing outside ``accel_state.environment`` reads or writes the process environment."""
    for _, file in package.modules():
        if file.relative_to(package.folder / "src").as_posix().startswith(DOOR):
            continue
        for line in environment_uses(ast.parse(file.read_text(encoding="utf-8"))):
            yield f"{file}:{line}: the environment is read and written in accel_state.environment only"


RULES: tuple[Callable[[Package], Iterator[str]], ...] = (
    names_agree,
    files_are_there,
    version_has_one_place,
    tests_mirror_source,
    names_are_clear,
    stubs_hide_no_code,
    environment_has_one_door,
)


def problems(root: Path) -> list[str]:
    """Return everything in the packages of ``root`` that is not as it should be."""
    packages = read_packages(root)
    lines = [line for package in packages.values() for rule in RULES for line in rule(package)]
    for folder in sorted(path for path in (root / "packages").iterdir() if path.is_dir()):
        if not (folder / "pyproject.toml").is_file():
            lines.append(f"{folder}: no pyproject.toml")
    return [line.replace(f"{root}/", "") for line in lines]


if __name__ == "__main__":
    sys.exit(report(problems(ROOT)))
