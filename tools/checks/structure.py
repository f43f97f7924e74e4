"""Every package has the same parts, its tests mirror its sources, and no stub hides code from type checkers."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.workspace import ROOT, Package, read_packages

WHOLE_PACKAGE = {
    "accel-bigmodel/tests/test_never_silently_wrong.py",
    "accel-data/tests/test_resume.py",
    "accel-launch/tests/config/test_fuzz.py",
    "accel-launch/tests/config/test_peer_files.py",
    "accel-launch/tests/test_golden_crashes.py",
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
    """Yield files that are missing or empty."""
    needed = (package.folder / name for name in ("README.md", "CHANGELOG.md", "LICENSE"))
    for file in (*needed, package.source / "__init__.py", package.source / "py.typed"):
        if not file.is_file() or (file.name != "py.typed" and not file.read_text(encoding="utf-8").strip()):
            yield f"{file}: missing or empty"


def tests(package: Package) -> Iterator[str]:
    """Yield tests, such as ``tests/a/test_b_aspect.py``, for which there is no module or folder ``a/b``."""
    modules = {file.relative_to(package.source).with_suffix("") for _, file in package.modules()}
    names = {name.as_posix().replace("__", "") for path in modules for name in (path, path.parent)}
    names |= {package.import_name, "face", "public_face", "readme"}
    for file in sorted(package.tests.rglob("test_*.py")):
        place, words = file.relative_to(package.tests).parent, file.stem.removeprefix("test_").split("_")
        mirrored = {(place / "_".join(words[:count])).as_posix() for count in range(1, len(words) + 1)}
        is_whole = f"{package.name}/{file.relative_to(package.folder)}" in WHOLE_PACKAGE
        if not is_whole and not names & mirrored:
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
    packages = read_packages(root).values()
    lines = [line for package in packages for rule in (parts, tests, stubs) for line in rule(package)]
    return [line.replace(f"{root}/", "") for line in lines]


if __name__ == "__main__":
    sys.exit("\n".join(problems(ROOT)) or 0)
