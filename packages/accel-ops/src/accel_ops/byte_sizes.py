"""Parse and format byte sizes."""

from __future__ import annotations

import math
import re

from accel_state.errors import ConfigError

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?|\.\d+)\s*(?P<prefix>[KMGT]?)(?P<binary>I?)(?P<byte>B?)\s*")


def convert_file_size_to_int(size: float | str) -> int:
    """Return ``size`` as a number of bytes.

    Args:
        size: A number of bytes, rounded down, or a number with its unit: ``"5MB"`` is 5 * 10**6, ``"10GiB"`` is
            10 * 2**30. Case is ignored, except that ``"Gb"``, which may mean gigabits, raises.

    Raises:
        ConfigError: If ``size`` is negative, or is not a number with a known unit.
    """
    if isinstance(size, bool) or not isinstance(size, int | float | str):
        raise ConfigError(f"`{size!r}` is not a size. Give bytes as a number, or a string such as `10GiB`.")
    if isinstance(size, str):
        return _parse(size)
    if not 0 <= size < math.inf:
        raise ConfigError(
            f"`{size}` is not a size: a number of bytes is finite and not negative. Give such a number."
        )
    return int(size)


def _parse(size: str) -> int:
    match = _SIZE.fullmatch(size.upper())
    if match is None or (match["binary"] and not match["prefix"]) or (match["prefix"] and not match["byte"]):
        raise ConfigError(f"`{size}` is not a size. Write a number and a unit, such as `5MB` or `10GiB`.")
    if re.search(r"[KMGT]i?b", size):
        unit = match["prefix"]
        raise ConfigError(f"`{size}` may mean bits or bytes. Write `{unit}B` or `{unit}iB` for bytes.")
    base = 1024 if match["binary"] else 1000
    return int(float(match["number"]) * base ** _POWERS[match["prefix"]])


def convert_bytes(size: float) -> str:
    """Return a number of bytes as people read it, in steps of 1024: ``"512 bytes"``, ``"1.5 GiB"``."""
    amount = size
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{round(amount, 2)} {unit}"
