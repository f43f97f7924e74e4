"""Counts the public names of Accelerate, read off its installed modules, and those that accel has at the same paths."""

from __future__ import annotations

import importlib
import pkgutil
import tomllib
import warnings
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

TABLE = tomllib.loads(
    (Path(__file__).parent / "libraries" / "private_names.toml").read_text(encoding="utf-8")
)
LEFT_OUT: dict[str, str] = TABLE["left_out"]
"""The reason by a pattern of `module:name`."""


def modules() -> Iterator[ModuleType]:
    """Yield every module of Accelerate that can be imported here, but for its test scripts."""
    accelerate = importlib.import_module("accelerate")
    yield accelerate
    for found in pkgutil.walk_packages(accelerate.__path__, "accelerate."):
        if found.name.startswith("accelerate.test_utils.scripts"):
            continue
        try:
            yield importlib.import_module(found.name)
        except ModuleNotFoundError as error:  # of a package that is not installed, such as rich
            if "accelerate" in str(error.name):
                raise


def is_of(module: ModuleType, name: str, value: object) -> bool:
    """Whether a public name is of a module: defined there, or handed on by a package; constants say nothing of it."""
    if name.startswith("_") or isinstance(value, ModuleType):
        return False
    is_package = hasattr(module, "__path__")
    defined_in = getattr(value, "__module__", None)
    if not isinstance(defined_in, str):
        return name.isupper() and (is_package or module.__name__ == "accelerate.utils.constants")
    return defined_in.split(".")[0] == "accelerate" if is_package else defined_in == module.__name__


def public_names() -> list[str]:
    """Return `module:name` for all of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sorted(
            f"{module.__name__}:{name}"
            for module in modules()
            for name, value in vars(module).items()
            if is_of(module, name, value)
        )


def is_offered(entry: str) -> bool:
    """Whether accel has `module:name`, as the drop-in hands it out."""
    module, _, name = entry.partition(":")
    path = f"accel{module.removeprefix('accelerate')}"
    try:
        return hasattr(importlib.import_module(path), name)
    except ModuleNotFoundError as error:
        if not f"{path}.".startswith(f"{error.name}."):
            raise
        return False


def reason(entry: str) -> str | None:
    """Return why a name is left out, None if no reason is given."""
    return next((text for pattern, text in LEFT_OUT.items() if fnmatch(entry, pattern)), None)
