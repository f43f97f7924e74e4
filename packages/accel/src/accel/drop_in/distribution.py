"""The distribution `accelerate`, which is not on the disk, for who asks `importlib.metadata` about it."""

from __future__ import annotations

from importlib.metadata import Distribution
from pathlib import Path

# Libraries ask for the version, and whether the home page is the one they know.
_METADATA = """\
Metadata-Version: 2.1
Name: accelerate
Version: {version}
Summary: Not installed: accel offers this interface.
Home-page: https://github.com/huggingface/accelerate
"""


class InterfaceDistribution(Distribution):
    """A distribution that has metadata and no files.

    Args:
        version: The version of the interface.
    """

    def __init__(self, version: str) -> None:
        self._metadata = _METADATA.format(version=version)

    def read_text(self, filename: str) -> str | None:
        """Return the metadata; there is no other file."""
        return self._metadata if filename in ("METADATA", "PKG-INFO") else None

    def locate_file(self, path: object) -> Path:
        """Return where a file would be, though there is none."""
        return Path(__file__).parent / str(path)
