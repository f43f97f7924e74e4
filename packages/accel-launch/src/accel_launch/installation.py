"""This Python: how it was started, and which accel it has."""

from __future__ import annotations

import re
from pathlib import Path

from accel_state.errors import ConfigError

_PARTS = ("state", "ops", "checkpoint", "data", "bigmodel", "backends", "trackers", "launch")
PACKAGES = ("accel", *(f"accel-{part}" for part in _PARTS))
"""The packages of accel. On public indexes these names may be other people's: install from paths and addresses only."""
INSTALL_FROM = "the wheels that `python tools/dev.py wheels --only-build` makes in a checkout of accel"


def wheels_in(folder: Path) -> list[Path]:
    """Return the wheels of accel in ``folder`` and its subfolders.

    Raises:
        ConfigError: If a package has none; pip would take one of its name from an index.
    """
    wheels = sorted([*folder.glob("accel*.whl"), *folder.glob("*/accel*.whl")])
    found = {wheel.name.partition("-")[0].replace("_", "-") for wheel in wheels}
    if missing := [name for name in PACKAGES if name not in found]:
        raise ConfigError(
            f"`{folder}` has no wheels of `{'`, `'.join(missing)}` to install from. "
            f"Copy {INSTALL_FROM} there."
        )
    return wheels


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
