"""The reference of a package: its README, then every public name from its docstring."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tools.site.places import for_site, page_of
from tools.workspace import Package

OWN = re.compile(r"(?:class|def) (\w+)|(\w+): ")
HANDED_ON = re.compile(r"(\w+) = (accel\w*)\.(\w+)$")
MODULE = re.compile(r"module (\w+)$")


def surface_lines(package: Package) -> list[str]:
    """Return a line for each public name of ``package``, as its ``surface.txt`` has it."""
    lines = (package.folder / "surface.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith(("#", " "))]


def own_names(package: Package) -> list[str]:
    """Return the public names that ``package`` defines."""
    found = (OWN.match(line) for line in surface_lines(package))
    return [match[1] or match[2] for match in found if match]


def package_pages(packages: Mapping[str, Package]) -> Iterator[tuple[str, str]]:
    """Yield page and Markdown for the reference and the changelog of every package."""
    own = {package.import_name: set(own_names(package)) for package in packages.values()}
    for package in packages.values():
        for file, more in (("README.md", _names(package, own)), ("CHANGELOG.md", "")):
            source = f"packages/{package.name}/{file}"
            page = page_of(source)
            assert page is not None
            text = (package.folder / file).read_text(encoding="utf-8")
            if file == "CHANGELOG.md":
                text = re.sub(r"\A# .*", f"# Changes in {package.name}", text)
            yield page, for_site(text, source=source, page=page) + more


def _names(package: Package, own: Mapping[str, set[str]]) -> str:
    """Return the text after the README: all public names."""
    described, handed_on, modules = [], [], []
    for line in surface_lines(package):
        if match := HANDED_ON.match(line):
            name, owner, original = match.groups()
            if original in own.get(owner, ()):
                handed_on.append((name, f"{owner}.{original}"))
            else:
                described.append(name)
        elif match := MODULE.match(line):
            modules.append(match[1])
        elif match := OWN.match(line):
            described.append(match[1] or match[2])
    parts = ["\n## Public names\n"]
    if modules:
        listed = ", ".join(f"`{package.import_name}.{name}`" for name in modules)
        parts.append(f"Modules: {listed}.\n")
    if handed_on:
        parts += ["| name here | where it is described |\n|-|-|"]
        parts += [f"| `{package.import_name}.{name}` | [`{home}`][{home}] |" for name, home in handed_on]
        parts.append("")
    parts += [f"::: {package.import_name}.{name}\n" for name in described]
    return "\n".join(parts)
