"""Entry points of what is installed, read straight from the metadata folders on `sys.path`.

`importlib.metadata` would cost some 40 ms here (its own import, then one object per distribution), more than
everything else that `accel --help` does; looking into the same `entry_points.txt` files takes about two.
"""

# Importing pathlib would take longer than reading all the files.
# ruff: noqa: PTH109, PTH112, PTH113, PTH118, PTH123, PTH208
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

    The answer is kept until `sys.path` changes.
    """
    return _entry_points(group, tuple(sys.path))


@lru_cache(maxsize=64)
def _entry_points(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    return tuple(
        EntryPoint(name, value, distribution)
        for distribution, text in _texts_on(path)
        for name, value in _lines_of(text, group)
    )


@lru_cache(maxsize=4)
def _texts_on(path: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return normalised name and text of every distribution that has entry points, whatever the group."""
    texts: dict[str, str] = {}
    for folder in dict.fromkeys(path):
        for distribution, text in _texts(folder or os.getcwd()):
            texts.setdefault(re.sub(r"[-_.]+", "-", distribution).lower(), text)
    return tuple((name, text) for name, text in texts.items() if text)


def _texts(folder: str) -> Iterator[tuple[str, str]]:
    """Yield name and ``entry_points.txt`` (empty where there is none) of every distribution in ``folder``."""
    if not os.path.isdir(folder):
        yield from _texts_in_archive(folder)
        return
    if not os.access(folder, os.R_OK):
        return  # Python cannot import from it either.
    for name in sorted(os.listdir(folder)):
        if not name.endswith((".dist-info", ".egg-info")):
            continue
        try:
            with open(os.path.join(folder, name, "entry_points.txt"), encoding="utf-8") as file:
                text = file.read()
        except (FileNotFoundError, NotADirectoryError):
            text = ""
        yield name.rpartition(".")[0].partition("-")[0], text


def _texts_in_archive(path: str) -> Iterator[tuple[str, str]]:
    if not os.path.isfile(path):
        return
    from importlib.metadata import distributions

    for distribution in distributions(path=[path]):
        yield distribution.name, distribution.read_text("entry_points.txt") or ""


def _lines_of(text: str, group: str) -> Iterator[tuple[str, str]]:
    current = ""
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("[") and line.endswith("]"):
            current = line[1:-1].strip()
        elif current == group and "=" in line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            # What follows a blank is the old notation for extras, `module:attr [extra]`.
            yield name.strip(), value.strip().partition(" ")[0]
