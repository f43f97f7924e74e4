"""The modules of packages as syntax trees."""

from __future__ import annotations

import ast
import gc
from collections.abc import Mapping

from tools.workspace import Package

Trees = Mapping[str, ast.Module]
"""Trees by dotted name of the module."""


def read_sources(packages: Mapping[str, Package]) -> Trees:
    """Parse every module of the packages, and every stub, which stands for the module of its name."""
    # Looking for garbage among so many new objects would take more time than making them.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return {
            name: ast.parse(file.read_text(encoding="utf-8"))
            for package in packages.values()
            for name, file in (*package.modules(), *package.stubs())
        }
    finally:
        if was_enabled:
            gc.enable()
