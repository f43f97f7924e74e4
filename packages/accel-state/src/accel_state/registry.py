"""Registries over entry points: the members of a family by name, imported when they are first used."""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from accel_state.errors import ConfigError, NotAvailableError, UnknownNameError

if TYPE_CHECKING:  # takes 25 ms to import
    from importlib.metadata import EntryPoint, EntryPoints

T = TypeVar("T")


class Registry(Generic[T]):
    """The members of one family, of accel and of other packages.

    Args:
        kind: The name of a member in messages, such as ``strategy``.
        group: The entry-point group that packages add members to, such as ``accel.strategies``.

    Names are read from the metadata of what is installed, without importing anything; a member is
    imported by the first `get`.
    """

    def __init__(self, kind: str, group: str) -> None:
        self.kind = kind
        self.group = group
        self._registered: dict[str, T] = {}

    def __repr__(self) -> str:
        return f"Registry(kind={self.kind!r}, group={self.group!r})"

    def __contains__(self, name: object) -> bool:
        return name in self._registered or name in self._owners()

    def names(self) -> list[str]:
        """Return all known names, sorted, importing no member."""
        return sorted({*self._owners(), *self._registered})

    def get(self, name: str) -> T:
        """Return the member called ``name``.

        Raises:
            UnknownNameError: If no package adds the name.
            ConfigError: If two installed packages add it, or it points at something that does not exist.
            NotAvailableError: If importing it fails because a dependency is not installed.
        """
        if name in self._registered:
            return self._registered[name]
        owners = self._owners().get(name)
        if owners is None:
            raise UnknownNameError.of(self.kind, name, self.names())
        if len(owners) > 1:
            packages = " and ".join(f"`{distribution_of(owner)}` ({owner.value})" for owner in owners)
            raise ConfigError(
                f"The {self.kind} `{name}` is added by more than one installed package: {packages}. "
                "Uninstall all but one of them."
            )
        return cast(T, self._load(owners[0]))

    def items(self) -> list[tuple[str, T]]:
        """Return all members with their names, sorted by name, importing each of them."""
        return [(name, self.get(name)) for name in self.names()]

    def register(self, name: str, member: T, *, replace: bool = False) -> None:
        """Add a member for the rest of this process.

        Raises:
            ConfigError: If the name is taken, unless ``replace``.
        """
        if not replace and name in self and self._registered.get(name) is not member:
            raise ConfigError(
                f"The {self.kind} `{name}` exists already. Choose another name, or pass `replace=True`."
            )
        self._registered[name] = member

    def unregister(self, name: str) -> None:
        """Remove a member that `register` added; members of installed packages stay.

        Raises:
            UnknownNameError: If there is none.
        """
        if name not in self._registered:
            raise UnknownNameError.of(f"registered {self.kind}", name, self._registered)
        del self._registered[name]

    def _owners(self) -> dict[str, list[EntryPoint]]:
        owners: dict[str, list[EntryPoint]] = {}
        for entry_point in entry_points(self.group):
            owners.setdefault(entry_point.name, []).append(entry_point)
        return owners

    def _load(self, entry_point: EntryPoint) -> object:
        where = (
            f"The {self.kind} `{entry_point.name}` of `{distribution_of(entry_point)}` ({entry_point.value})"
        )
        try:
            return entry_point.load()
        except ImportError as error:
            raise NotAvailableError(f"{where} cannot be imported: {error}", name=error.name) from error
        except AttributeError as error:
            raise ConfigError(
                f"{where} does not exist: {error}. Correct the entry point, or uninstall the package."
            ) from error


def distribution_of(entry_point: EntryPoint) -> str:
    """Return the name of the package that adds an entry point."""
    return "" if entry_point.dist is None else entry_point.dist.name


def entry_points(group: str) -> EntryPoints:
    """Return the entry points of ``group`` of all packages, which are read again if `sys.path` has changed."""
    return _entry_points(group, tuple(sys.path))


@lru_cache(maxsize=64)
def _entry_points(group: str, path: tuple[str, ...]) -> EntryPoints:
    return _all_entry_points(path).select(group=group)


@lru_cache(maxsize=4)  # reading the metadata of all installed packages is slow
def _all_entry_points(path: tuple[str, ...]) -> EntryPoints:
    from importlib.metadata import EntryPoints, distributions
    from importlib.metadata import entry_points as installed

    with suppress(TypeError, ValueError):  # a package whose file is malformed, or not UTF-8
        return cast("EntryPoints", installed())
    points: dict[str, EntryPoints] = {}
    for package in distributions():
        try:
            points.setdefault(package.name, package.entry_points)
        except (TypeError, ValueError) as error:
            warnings.warn(
                f"The `entry_points.txt` of the package `{package.name}` in `{package.locate_file('')}` is ignored, "
                f"since it cannot be read: {error}. Install the package again, or uninstall it.",
                stacklevel=2,
            )
    return EntryPoints(point for each in points.values() for point in each)
