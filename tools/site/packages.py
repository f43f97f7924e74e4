"""The reference of a package: its README, then every public name from its docstring."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tools.site.places import for_site
from tools.workspace import Package

OWN = re.compile(r"(?:class|def) (\w+)|(\w+): ")
HANDED_ON = re.compile(r"(\w+) = (accel\w*)\.(\w+)$")


def surface_lines(package: Package) -> list[str]:
    """Return a line for each public name of ``package``, as its ``surface.txt`` has it."""
    lines = (package.folder / "surface.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith(("#", " "))]


def package_pages(packages: Mapping[str, Package]) -> Iterator[tuple[str, str]]:
    """Yield page and Markdown for the reference and the changelog of every package."""
    own = {
        package.import_name: {
            match[1] or match[2] for match in map(OWN.match, surface_lines(package)) if match
        }
        for package in packages.values()
    }
    for package in packages.values():
        source, page = f"packages/{package.name}/README.md", f"reference/packages/{package.name}.md"
        text = (package.folder / "README.md").read_text(encoding="utf-8")
        yield page, for_site(text, source=source, page=page) + _names(package, own)
        source, page = f"packages/{package.name}/CHANGELOG.md", f"project/changelogs/{package.name}.md"
        text = re.sub(
            r"\A# .*", f"# Changes in {package.name}", package.changelog.read_text(encoding="utf-8")
        )
        yield page, for_site(text, source=source, page=page)


def _names(package: Package, own: Mapping[str, set[str]]) -> str:
    """Return the text after the README: all public names."""
    ours, described, handed_on, modules = package.import_name, list[str](), list[str](), list[str]()
    for line in surface_lines(package):
        if (match := HANDED_ON.match(line)) and match[3] in own.get(match[2], ()):
            handed_on.append(f"| `{ours}.{match[1]}` | [`{match[2]}.{match[3]}`][{match[2]}.{match[3]}] |")
        elif line.startswith("module "):
            modules.append(f"`{ours}.{line.removeprefix('module ')}`")
        elif match := match or OWN.match(line):
            described.append(match[1] or match[2])
    parts = ["\n## Public names\n", *([f"Modules: {', '.join(modules)}.\n"] if modules else [])]
    if handed_on:
        parts += ["| name here | where it is described |\n|-|-|", *handed_on, ""]
    return "\n".join([*parts, *(f"::: {ours}.{name}\n" for name in described)])
