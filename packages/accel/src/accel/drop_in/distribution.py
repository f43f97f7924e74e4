"""A distribution that is not on the disk, for who asks `importlib.metadata` for its version."""

from __future__ import annotations

from importlib.metadata import Distribution
from pathlib import Path


class NamedDistribution(Distribution):
    """A distribution that has a name and a version, and no files.

    Args:
        name: Its name.
        version: Its version.
    """

    def __init__(self, name: str, version: str) -> None:
        self._metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        """Return the metadata; there is no other file."""
        return self._metadata if filename in ("METADATA", "PKG-INFO") else None

    def locate_file(self, path: object) -> Path:
        """Return where a file would be, though there is none."""
        return Path(__file__).parent / str(path)


def distribution(name: str, version: str) -> NamedDistribution:
    """Return a distribution of that name and version."""
    return NamedDistribution(name, version)
