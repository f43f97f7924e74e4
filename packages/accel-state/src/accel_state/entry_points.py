"""Entry points of what is installed, read straight from the metadata folders on `sys.path`.

`importlib.metadata` would do, but importing it takes longer than everything else that `accel --help` does (some 40 ms
of 90, measured with Python 3.11); of all distributions this reads only the files that name the group.
"""

# Importing pathlib would take longer than reading all the files.
# ruff: noqa: PTH118, PTH123, PTH208
from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple


class EntryPoint(NamedTuple):
    """One line of an ``entry_points.txt``: ``name = value``, in the file of ``distribution``."""

    name: str
    value: str
    distribution: str


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
