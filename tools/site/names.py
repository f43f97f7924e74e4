"""The reference of names that users import from ``accel.utils`` and its kin: where each is described."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping

from tools.site.packages import own_names
from tools.site.sources import Trees
from tools.workspace import Package

INTRODUCTION = """\
Names that scripts import from modules of `accel`, such as `accel.utils`, and the package that has them. Importing them
from either place is the same.

| name | may be imported from | described as |
|-|-|-|"""
TESTING = ".testing"
"""Modules for tests; some of their names are created on first use."""


def names_pages(packages: Mapping[str, Package], sources: Trees) -> Iterator[tuple[str, str]]:
    """Yield page and Markdown of the list of names."""
    definitions = _definitions(sources)
    public = {
        definitions.get((package.import_name, name)): f"{package.import_name}.{name}"
        for package in packages.values()
        for name in own_names(package)
    }
    places: dict[str, set[str]] = defaultdict(set)
    homes: dict[str, str] = {}
    for module, owner, name, public_name in _handed_on(sources):
        home = definitions.get((owner, name)) or _below(owner, name, definitions)
        homes[public_name] = public.get(home, home)
        places[public_name].add(f"`{module}`")
    rows, further = [], {}
    for name, home in sorted(homes.items()):
        if home and home not in public.values():
            further[home] = f"::: {home}\n"
        rows.append(
            f"| `{name}` | {', '.join(sorted(places[name]))} | {f'[`{home}`][{home}]' if home else ''} |"
        )
    parts = [
        "# Names in `accel.utils` and others\n",
        INTRODUCTION,
        *rows,
        "\n## Described here\n",
        *further.values(),
    ]
    yield "reference/names.md", "\n".join(parts)


def _handed_on(sources: Trees) -> Iterator[tuple[str, str, str, str]]:
    """Yield ``(module of accel, module that has the name, name, name in accel)`` for every name in a stub."""
    for stub, tree in sources.items():
        module = stub.removesuffix("_names")
        for owner, name, public_name in _public(tree, sources) if stub.startswith("accel.") else ():
            if owner != module and not public_name.startswith("_"):
                yield module, owner, name, public_name


def _public(tree: ast.Module, sources: Trees) -> Iterator[tuple[str, str, str]]:
    """Yield ``(module, name, public name)`` for every name in a stub; a star means the names of another stub."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(public_name)], value=ast.Attribute(owner, name)):
                yield ast.unparse(owner), name, public_name
            case ast.ImportFrom(str(module), names) if not module.endswith(TESTING):
                for alias in names:
                    if alias.name == "*":
                        yield from _public(sources[module], sources)
                    elif alias.asname == alias.name:
                        yield module, alias.name, alias.name


def _definitions(sources: Trees) -> dict[tuple[str, str], str]:
    """Return the path of a docstring, by module and name; names created at run time have none."""
    found: dict[tuple[str, str], str] = {}
    imported: dict[tuple[str, str], tuple[str, str]] = {}
    for module, tree in sources.items():
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    imported[module, alias.asname or alias.name] = (node.module or "", alias.name)
            elif isinstance(node, ast.ClassDef | ast.FunctionDef):
                names = [node.name]
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            found |= {(module, name): f"{module}.{name}" for name in names}
    for place, home in imported.items():
        seen = {place}  # a package re-exports its modules
        while home in imported and home not in seen:
            seen.add(home)
            home = imported[home]
        if home in found:
            found.setdefault(place, found[home])
    return found


def _below(module: str, name: str, definitions: Mapping[tuple[str, str], str]) -> str:
    """Return where a module in the folder of ``module`` has ``name``, which it re-exports by a separate table."""
    inside = (
        home
        for (place, known), home in definitions.items()
        if known == name and place.startswith(f"{module}.") and home == f"{place}.{name}"
    )
    return next(inside, "")
