"""Registries over entry points: the members of a family by name, imported when they are first used.

Entry points are read from the metadata folders on `sys.path`. `importlib.metadata` would do, but importing it adds
25 ms to the 60 ms of `accel --help` (Python 3.11); of all distributions this reads only the files that name the group.
"""

# Importing pathlib would take longer than reading all the files.
# ruff: noqa: PTH118, PTH123, PTH208

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from typing import Any, Generic, NamedTuple, TypeVar, cast

from accel_state.errors import ConfigError, NotAvailableError, UnknownNameError

T = TypeVar("T")


class EntryPoint(NamedTuple):
    """One line of an ``entry_points.txt``: ``name = value``, in the file of ``distribution``."""

    name: str
    value: str
    distribution: str


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
        self._loaded: dict[EntryPoint, T] = {}

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
            UnknownNameError: If no package owns the name.
            ConfigError: If two installed packages own it, or it points at something that does not exist.
            NotAvailableError: If importing it fails because something it needs is not installed.
        """
        if name in self._registered:
            return self._registered[name]
        owners = self._owners().get(name)
        if owners is None:
            raise UnknownNameError.of(self.kind, name, self.names())
        return self._load(self._only_owner(name, owners))

    def items(self) -> list[tuple[str, T]]:
        """Return all members with their names, sorted by name, importing each of them."""
        return [(name, self.get(name)) for name in self.names()]

    def register(self, name: str, member: T, *, replace: bool = False) -> None:
        """Add a member for the rest of this process; a name that is taken is refused unless ``replace``."""
        if not replace and name in self and self._registered.get(name) is not member:
            raise ConfigError(
                f"The {self.kind} `{name}` exists already. Choose another name, or pass `replace=True`."
            )
        self._registered[name] = member

    def unregister(self, name: str) -> None:
        """Take back what `register` added; names owned by installed packages stay."""
        if name not in self._registered:
            raise UnknownNameError.of(f"registered {self.kind}", name, self._registered)
        del self._registered[name]

    def _owners(self) -> dict[str, list[EntryPoint]]:
        owners: dict[str, list[EntryPoint]] = {}
        for entry_point in entry_points(self.group):
            owners.setdefault(entry_point.name, []).append(entry_point)
        return owners

    def _only_owner(self, name: str, owners: list[EntryPoint]) -> EntryPoint:
        if len(owners) > 1:
            packages = " and ".join(f"`{owner.distribution}` ({owner.value})" for owner in owners)
            raise ConfigError(
                f"The {self.kind} `{name}` is owned by more than one installed package: {packages}. "
                "Uninstall all but one of them."
            )
        return owners[0]

    def _load(self, entry_point: EntryPoint) -> T:
        if entry_point not in self._loaded:
            self._loaded[entry_point] = cast(T, self._import(entry_point))
        return self._loaded[entry_point]

    def _import(self, entry_point: EntryPoint) -> Any:
        where = f"The {self.kind} `{entry_point.name}` of `{entry_point.distribution}` ({entry_point.value})"
        module_name, _, path = entry_point.value.partition(":")
        try:
            member: Any = import_module(module_name)
        except ImportError as error:
            raise NotAvailableError(f"{where} cannot be imported: {error}", name=error.name) from error
        for attribute in filter(None, path.split(".")):
            if not hasattr(member, attribute):
                raise ConfigError(
                    f"{where} does not exist: `{module_name}` has no `{path}`. "
                    "Correct the entry point, or uninstall the package."
                )
            member = getattr(member, attribute)
        return member


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of ``group``, in the order of `sys.path`, each distribution counted once.

    The answer is kept until `sys.path` changes. A file that cannot be read, or is not UTF-8, is passed over with a
    warning if it is there at all.
    """
    return _entry_points(group, tuple(sys.path))


@lru_cache(maxsize=64)
def _entry_points(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    return tuple(
        EntryPoint(*line, distribution)
        for distribution, content in _contents_on(path)
        if group.encode() in content
        for line in _lines_of(content.decode(), group)
    )


@lru_cache(maxsize=4)
def _contents_on(path: tuple[str, ...]) -> tuple[tuple[str, bytes], ...]:
    """Return normalised name and ``entry_points.txt`` of every distribution that has one."""
    contents: dict[str, bytes] = {}
    for folder in dict.fromkeys(path):
        for distribution, content in _contents(folder or os.curdir):
            contents.setdefault(re.sub(r"[-_.]+", "-", distribution).lower(), content)
    return tuple((name, content) for name, content in contents.items() if content)


def _contents(folder: str) -> Iterator[tuple[str, bytes]]:
    try:
        names = sorted(os.listdir(folder))
    except NotADirectoryError:
        yield from _contents_in_archive(folder)
    except OSError:
        return  # Python cannot import from it either.
    else:
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                yield name.rpartition(".")[0].partition("-")[0], _content(folder, name)


def _content(folder: str, info: str) -> bytes:
    path = os.path.join(folder, info, "entry_points.txt")
    try:
        with open(path, "rb") as file:
            content = file.read()
        content.decode()
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except (OSError, UnicodeDecodeError) as error:
        import warnings

        warnings.warn(f"`{path}` cannot be read, so what it adds is not known: {error}", stacklevel=2)
        return b""
    return content


def _contents_in_archive(path: str) -> Iterator[tuple[str, bytes]]:
    from importlib.metadata import distributions

    for distribution in distributions(path=[path]):
        yield distribution.name, (distribution.read_text("entry_points.txt") or "").encode()


def _lines_of(text: str, group: str) -> Iterator[tuple[str, str]]:
    current = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            current = line[1:-1].strip()
        elif current == group and "=" in line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            # What follows a blank is the old notation for extras, `module:attr [extra]`.
            yield name.strip(), value.strip().partition(" ")[0]
