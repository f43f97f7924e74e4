"""Imports run downwards only, and the torch-free parts stay torch-free.

Three looks at the same rule: import-linter reads every import statement, in functions too (contracts in the
root ``pyproject.toml``); strings that name modules and the imports of stubs are held to the same layers; and a
fresh Python imports the torch-free modules and reports whether torch was imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.checks.imports import Kind, imports_of
from tools.checks.reporting import report
from tools.workspace import ROOT, owner_of, read_packages

NOTEBOOK = "accel_launch.notebook"
"""The one part of the launcher that may reach torch: it runs where torch is imported already, and forks."""


def contracts(root: Path) -> dict[str, dict[str, Any]]:
    """Return import-linter's contracts from the root ``pyproject.toml``, by id."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    return {contract["id"]: contract for contract in settings["contracts"]}


def source_path(root: Path) -> str:
    """Return a PYTHONPATH with the sources of all packages."""
    return os.pathsep.join(str(package.folder / "src") for package in read_packages(root).values())


def statement_problems(root: Path) -> Iterator[str]:
    """Yield import-linter's report if a contract is broken."""
    program = "from importlinter.cli import lint_imports_command as c; c()"
    words = [
        sys.executable,
        "-c",
        program,
        "--config",
        str(root / "pyproject.toml"),
        "--no-cache",
        "--no-logo",
    ]
    environ = {**os.environ, "PYTHONPATH": source_path(root), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, cwd=root, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        yield done.stdout.strip() + done.stderr.strip()


def ranks(root: Path) -> dict[str, int]:
    """Return the height of each package's layer: 0 is the bottom."""
    layers = contracts(root)["layers"]["layers"]
    return {name.strip(): height for height, line in enumerate(reversed(layers)) for name in line.split("|")}


def text_problems(root: Path) -> Iterator[str]:
    """Yield strings that name a module of a higher layer than their file, or of the same layer."""
    heights = ranks(root)
    packages = read_packages(root)
    for package in packages.values():
        for _, file in package.modules():
            for found in imports_of(file):
                owner = owner_of(packages, found.module) if found.kind is Kind.TEXT else package
                if owner in (None, package):
                    continue
                if heights[owner.import_name] >= heights[package.import_name]:
                    place = f"{file.relative_to(root)}:{found.line}"
                    yield f"{place}: the string names `{found.module}`, not below `{package.import_name}`"


def stub_problems(root: Path) -> Iterator[str]:
    """Yield the imports of stubs that do not lead to a layer below."""
    heights = ranks(root)
    for package in read_packages(root).values():
        for _, file in package.stubs():
            for found in imports_of(file):
                owner = found.module.partition(".")[0]
                height = heights.get(owner, -1)
                if owner != package.import_name and height >= heights[package.import_name]:
                    place = f"{file.relative_to(root)}:{found.line}"
                    yield f"{place}: the stub imports `{found.module}`, not below `{package.import_name}`"


def torch_free_modules(root: Path) -> list[str]:
    """Return the modules that are imported without torch: package roots, launcher, the lower half of accel_state."""
    packages = read_packages(root)
    free = tuple(contracts(root)["torch-free-state"]["source_modules"])
    modules = [package.import_name for package in packages.values()]
    for package in packages.values():
        for name, _ in package.modules():
            is_launcher = name.startswith("accel_launch.") and name != NOTEBOOK
            is_entry_script = name.endswith("__main__")
            if (
                is_launcher or f"{name}.".startswith(tuple(f"{each}." for each in free))
            ) and not is_entry_script:
                modules.append(name)
    return modules


def runtime_problems(root: Path) -> Iterator[str]:
    """Yield the torch-free modules that bring torch along, or cannot be imported, in a fresh Python."""
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ImportError as error:\n"
        "        print(f'`{name}` cannot be imported: {error}')\n"
        "    if 'torch' in sys.modules:\n"
        "        print(f'importing `{name}` imports torch')\n"
        "        break\n"
    )
    environ = {**os.environ, "PYTHONPATH": source_path(root), "PYTHONDONTWRITEBYTECODE": "1"}
    words = [sys.executable, "-c", program, *torch_free_modules(root)]
    done = subprocess.run(
        words, cwd=root, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    yield from done.stdout.splitlines()
    if done.returncode != 0:
        yield done.stderr.strip()


def problems(root: Path) -> list[str]:
    """Return every broken rule in the packages of ``root``."""
    return [*statement_problems(root), *text_problems(root), *stub_problems(root), *runtime_problems(root)]


if __name__ == "__main__":
    sys.exit(report(problems(ROOT)))
