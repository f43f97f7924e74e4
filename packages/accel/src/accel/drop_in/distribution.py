"""The metadata of the distribution `accelerate`, which is not installed, for `importlib.metadata`."""

from __future__ import annotations

from importlib.metadata import Distribution
from pathlib import Path

# Libraries read the version and compare the home page.
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
