"""The packages of this checkout, read from their ``pyproject.toml``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def requirement_name(requirement: str) -> str:
    """Return the normalised distribution name of ``requirement``: ``PyYAML>=6.0`` gives ``pyyaml``."""
    found = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    if found is None:
        raise ValueError(f"`{requirement}` does not begin with the name of a distribution.")
    return re.sub(r"[-_.]+", "-", found[1]).lower()


def as_numbers(release: str) -> tuple[int, ...]:
    """Return ``2.10`` as ``(2, 10)``."""
    return tuple(int(part) for part in release.split("."))


@dataclass(frozen=True)
class Package:
    """One folder of ``packages/``."""

    folder: Path
    project: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.project["name"])

    @property
    def import_name(self) -> str:
        return self.folder.name.replace("-", "_")

    @property
    def source(self) -> Path:
        return self.folder / "src" / self.import_name

    @property
    def tests(self) -> Path:
        return self.folder / "tests"

    @property
    def changelog(self) -> Path:
        return self.folder / "CHANGELOG.md"

    @property
    def dependencies(self) -> list[str]:
        return list(self.project.get("dependencies", []))

    @property
    def extras(self) -> dict[str, list[str]]:
        return dict(self.project.get("optional-dependencies", {}))

    @property
    def required_names(self) -> set[str]:
        return {requirement_name(each) for each in self.dependencies}

    @property
    def extra_names(self) -> set[str]:
        return {requirement_name(each) for group in self.extras.values() for each in group}

    @cached_property
    def version(self) -> str:
        """The value of ``__version__`` in the package's ``__init__.py``."""
        text = (self.source / "__init__.py").read_text(encoding="utf-8")
        found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
        if found is None:
            raise ValueError(f"`{self.source}/__init__.py` sets no `__version__`.")
        return found[1]

    def modules(self, suffix: str = ".py") -> Iterator[tuple[str, Path]]:
        """Yield ``(dotted name, file)`` of every module, or stub with ``.pyi``, sorted."""
        for file in sorted(self.source.rglob(f"*{suffix}")):
            parts = [self.import_name, *file.relative_to(self.source).with_suffix("").parts]
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


def read_packages(root: Path = ROOT) -> dict[str, Package]:
    """Return the packages under ``root/packages``, by name."""
    packages = {}
    for file in sorted((root / "packages").glob("*/pyproject.toml")):
        package = Package(file.parent, tomllib.loads(file.read_text(encoding="utf-8"))["project"])
        packages[package.name] = package
    return packages


def with_siblings(packages: Mapping[str, Package], name: str) -> list[Package]:
    """Return package ``name`` and every sibling it needs, directly or not; the lowest first."""
    needed = sorted(packages[name].required_names & packages.keys())
    ordered = {each.name: each for sibling in needed for each in with_siblings(packages, sibling)}
    return [*ordered.values(), packages[name]]


def lowest_first(packages: Mapping[str, Package]) -> list[Package]:
    """Return ``packages``, each after every sibling that it needs."""
    ordered = {each.name: each for name in packages for each in with_siblings(packages, name)}
    return list(ordered.values())


def dependency_group(name: str) -> list[str]:
    """Return the requirements of a dependency group of the root ``pyproject.toml`` that includes no other."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return list(project["dependency-groups"][name])
