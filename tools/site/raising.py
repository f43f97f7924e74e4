"""The reference of errors: each class, and which public names raise it when."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tools.site.packages import own_names
from tools.site.sources import Trees
from tools.workspace import Package

BASE = "AccelError"
_RAISES = re.compile(r"^( *)Raises:\n(?P<section>(?:\1 +[^\n]*\n?|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^ *(\w+): (.*(?:\n(?! *\w+: ).+)*)", re.MULTILINE)
INTRODUCTION = """\
Everything that accel raises on purpose is an `AccelError`, and also the built-in error that existing `except` clauses
catch. A message names the thing in backticks, says what is wrong with the value at hand, and what to do.
[Troubleshooting](../help/troubleshooting.md) goes by symptom.
"""


@dataclass
class ErrorClass:
    """A class of ours that is raised.

    Attributes:
        name: Its name.
        bases: Names of its direct bases.
        module: Where it is defined.
        docstring: Its docstring.
        raised_by: Pairs of a public name and the reason that its docstring gives.
    """

    name: str
    bases: list[str]
    module: str
    docstring: str
    raised_by: list[tuple[str, str]] = field(default_factory=list)


def error_classes(packages: Mapping[str, Package], sources: Trees) -> list[ErrorClass]:
    """Return every error class of the packages; what derives from it follows a class."""
    found = _classes(sources)
    for package in packages.values():
        _add_reasons(found, package, sources)
    return list(found.values())


def error_page(classes: Iterable[ErrorClass]) -> str:
    """Return the reference of error classes as Markdown."""
    lines = ["# Errors\n", INTRODUCTION]
    for each in classes:
        lines.append(f"## {each.name}\n")
        lines.append(f"`{each.module}.{each.name}`, also: {', '.join(f'`{base}`' for base in each.bases)}.\n")
        lines.append(f"{each.docstring}\n")
        if each.raised_by:
            lines.append("| raised by | when |\n|-|-|")
            lines += [f"| `{name}` | {_cell(reason)} |" for name, reason in sorted(set(each.raised_by))]
            lines.append("")
    return "\n".join(lines)


def reasons_in(docstring: str) -> Iterator[tuple[str, str]]:
    """Yield class and reason of each error in the section ``Raises`` of a docstring."""
    for section in _RAISES.finditer(f"{docstring}\n"):
        yield from _ENTRY.findall(section["section"])


def _classes(sources: Trees) -> dict[str, ErrorClass]:
    """Return the classes that derive from `AccelError`, it first."""
    defined = {
        node.name: ErrorClass(
            node.name, [_last_name(base) for base in node.bases], module, ast.get_docstring(node) or ""
        )
        for module, tree in sources.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }
    found = {BASE: defined.pop(BASE)}
    while more := {name: each for name, each in defined.items() if found.keys() & set(each.bases)}:
        found |= more
        defined = {name: each for name, each in defined.items() if name not in more}
    return found


def _add_reasons(found: Mapping[str, ErrorClass], package: Package, sources: Trees) -> None:
    """Read the sections ``Raises`` of the public names of ``package``."""
    for public in own_names(package):
        node = _definition(package.import_name, public, sources)
        for name, documented in _documented(node, f"{package.import_name}.{public}"):
            for error, reason in reasons_in(ast.get_docstring(documented) or ""):
                if error in found:
                    found[error].raised_by.append((name, reason))


def _definition(module: str, name: str, sources: Trees) -> ast.stmt | None:
    """Return the class or function that a module calls ``name``, also where other modules hand it on."""
    for node in ast.walk(sources[module]) if module in sources else ():
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and node.module not in (None, module):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _definition(str(node.module), alias.name, sources)
    return None


def _documented(node: ast.stmt | None, name: str) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef]]:
    """Yield a class or function and, of a class, its public methods."""
    if not isinstance(node, ast.ClassDef | ast.FunctionDef):
        return
    yield name, node
    for inner in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
            yield f"{name}.{inner.name}", inner


def _last_name(node: ast.expr) -> str:
    """Return ``ConfigError`` for ``errors.ConfigError``, and for ``ConfigError``."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
