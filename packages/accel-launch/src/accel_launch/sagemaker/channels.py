"""The two small files of a SageMaker job: its input channels and the metrics it is watched for."""

from __future__ import annotations

import re
from pathlib import Path

from accel_state.errors import ConfigError

# A heading has a plain word where a place or a pattern would stand.
_HEADING = re.compile(r"[A-Za-z_ ]+")


def inputs_of(path: Path) -> dict[str, str]:
    """Return places by channel from lines ``NAME<tab>PLACE``; a heading above them is left out.

    Raises:
        ConfigError: If the file cannot be read, or a line is no pair.
    """
    return dict(_pairs(path, "the places of its channels"))


def metrics_of(path: Path) -> list[dict[str, str]]:
    """Return ``{"Name": ..., "Regex": ...}`` for lines ``NAME<tab>PATTERN``; a heading above them is left out.

    Raises:
        ConfigError: If the file cannot be read, or a line is no pair.
    """
    return [{"Name": name, "Regex": pattern} for name, pattern in _pairs(path, "the patterns of its metrics")]


def _pairs(path: Path, what: str) -> list[tuple[str, str]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The file `{path}`, with {what}, cannot be read: {error}.") from error
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        name, tab, rest = line.partition("\t")
        if not tab or not name.strip() or not rest.strip():
            raise ConfigError(
                f"Line {number} of `{path}` must be two columns with a tab between them, got `{line}`."
            )
        pairs.append((name.strip(), rest.strip()))
    return pairs[1:] if pairs and _HEADING.fullmatch(pairs[0][1]) else pairs
