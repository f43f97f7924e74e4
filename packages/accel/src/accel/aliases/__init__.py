"""The module paths that users import from hand on names that live in the packages.

`accel.utils.operations.gather` is `accel_ops.gather`. `names.toml` lists, for each path, the names that users expect
there. Each path is a file that calls `aliases`, which looks the names up in the public lists of the packages. A
name that no package offers yet is an AttributeError, as in any module.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from accel_state.lazy import attach

OWNERS = (
    "accel_state",
    "accel_state.environment",
    "accel_state.availability",
    "accel_state.testing",
    "accel_ops",
    "accel_ops.testing",
    "accel_checkpoint",
    "accel_data",
    "accel_backends",
    "accel_bigmodel",
    "accel_trackers",
    "accel_launch",
    "accel",
    "accel.checkpoints",
    "accel.functions.fsdp2",
    "accel.functions",
    "accel.functions.fsdp_constants",
    "accel.functions.general",
)
"""Modules whose public lists are searched, in this order; all of them are imported without torch."""


@cache
def expected_names() -> dict[str, list[str]]:
    """Return the names that users expect, by module path."""
    table = tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))
    return {path: names.split() for path, names in table.items()}


@cache
def owners() -> dict[str, str]:
    """Return the module that owns a name, by public name."""
    return {name: owner for owner in reversed(OWNERS) for name in importlib.import_module(owner).__all__}


def aliases(
    module_name: str, *, private: Mapping[str, str] | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for the module at one of the paths.

    The paths below a package are attributes of it without an import, unless they hide a name, as `utils.tqdm` would.

    Args:
        module_name: The module's ``__name__``.
        private: Names with an underscore that programs import, as ``"module:attribute"``; not in `__all__`.
    """
    found = {name: owners()[name] for name in expected_names()[module_name] if name in owners()}
    below = {
        path.removeprefix(f"{module_name}.")
        for path in expected_names()
        if path.startswith(f"{module_name}.")
    }
    load, listing, names = attach(module_name, {**found, **(private or {})}, submodules=below - set(found))
    return load, listing, [name for name in names if name in found]
