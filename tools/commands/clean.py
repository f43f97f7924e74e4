"""Remove what the other commands made."""

from __future__ import annotations

import argparse
import shutil

from tools.commands.protocol import Command
from tools.setup.running import say
from tools.workspace import ROOT

MADE = (
    ".venv", ".venvs", "build", "dist", "runs", "site",
    ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".import_linter_cache",
)  # fmt: skip


def clean(arguments: argparse.Namespace) -> int:
    for name in MADE:
        folder = ROOT / name
        if not folder.exists() or (arguments.keep_environments and name.startswith(".venv")):
            continue
        shutil.rmtree(folder)
        say(f"removed {name}")
    for folder in [*(ROOT / "packages").rglob("__pycache__"), *(ROOT / "tools").rglob("__pycache__")]:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep-environments", action="store_true", help="keep .venv and .venvs")


command = Command(help="remove environments, caches, builds and runs", run=clean, add_arguments=add_arguments)
