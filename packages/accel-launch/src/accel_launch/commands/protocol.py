"""What a subcommand of ``accel`` is, and how its summary is read without importing it."""

from __future__ import annotations

import argparse
import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

COMMAND_GROUP = "accel.commands"


class Command(Protocol):
    """A subcommand of ``accel``.

    Its entry point names an object like this, in a module whose docstring starts with `help`. One that adds a
    ``--help`` of its own has an attribute ``has_own_help``, which is true.
    """

    @property
    def help(self) -> str:
        """What it does, in one line."""
        ...

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add its flags; `run` gets what the parser makes of them."""
        ...

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it and return the exit code; an `AccelError` becomes one line on stderr and exit code 1."""
        ...


def summary_of(entry_point_value: str) -> str:
    """Return the first docstring line of the module in ``package.module:object``, read from its source.

    Nothing is imported, so listing the commands costs the same however heavy they are. A command without
    source has an empty summary.
    """
    source = _source_file(entry_point_value.partition(":")[0])
    if source is None:
        return ""
    docstring = ast.get_docstring(ast.parse(source.read_bytes()))
    return docstring.splitlines()[0].rstrip(".") if docstring else ""


def _source_file(module_name: str) -> Path | None:
    package, *rest = module_name.split(".")
    spec = find_spec(package)
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        base = Path(location, *rest)
        for candidate in (base.with_suffix(".py"), base / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None
