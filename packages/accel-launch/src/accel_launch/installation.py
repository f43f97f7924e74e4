"""This Python: how it was started, and which accel it has."""

from __future__ import annotations

import re
import subprocess
import sys

# The launcher, and what scripts import.
_DISTRIBUTIONS = ("accel-launch", "accel")


def interpreter_command() -> tuple[str, ...]:
    """Return the command line of this Python: after ``python -O -m accel_launch`` it ends with ``-O``."""
    # What `multiprocessing` starts its processes with; only `-u` changes no flag.
    options = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    is_unbuffered = getattr(sys.__stdout__, "write_through", False)
    return (sys.executable, *options, *(["-u"] if is_unbuffered else []))


def requirements_here() -> list[str]:
    """Return what installs the versions that are installed here."""
    from importlib.metadata import PackageNotFoundError, version  # many modules, which a launch does without

    found = []
    for name in _DISTRIBUTIONS:
        try:
            found.append(f"{name}=={version(name)}")
        except PackageNotFoundError:
            continue
    return found


def requirements_of(wanted: str) -> list[str]:
    """Return what installs a version: a number, ``latest``, or any other requirement or address that `pip` takes."""
    if wanted == "latest":
        return ["--upgrade", *_DISTRIBUTIONS]
    return [f"{name}=={wanted}" for name in _DISTRIBUTIONS] if re.fullmatch(r"[\w.]+", wanted) else [wanted]


def least_versions() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the oldest Python and the oldest torch that accel-launch runs with."""
    from importlib.metadata import metadata, requires

    python = metadata("accel-launch")["Requires-Python"]
    (torch,) = (text for text in requires("accel-launch") or () if re.match(r"torch\b", text))
    return release(python), release(torch)


def release(text: str) -> tuple[int, ...]:
    """Return the first two numbers of the version in ``text``: ``py312`` and ``>=3.12`` are ``(3, 12)``."""
    short = re.fullmatch(r"py(\d)(\d+)", text)
    numbers = short.groups() if short else re.findall(r"\d+", text)[:2]
    return tuple(int(number) for number in numbers)
