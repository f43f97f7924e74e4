"""A short number that tells whether bytes are still those that were written.

CRC-32, as zip files have it: it finds every damage of up to 32 bits in a row and all but one in four thousand million
others, and costs a small part of what SHA-256 would, which would be the longest part of a save. It is no defence
against a person who changes a file on purpose: that person changes the manifest too. The name of the algorithm stands
before the number, so that a later release may choose another.
"""

from __future__ import annotations

import zlib
from pathlib import Path

_CHUNK_BYTES = 4 * 2**20
_NAME = "crc32"


class Digest:
    """The digest of what `update` has been given so far."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes | memoryview) -> None:
        """Take in the next bytes; other threads go on meanwhile."""
        self._value = zlib.crc32(data, self._value)

    def __str__(self) -> str:
        return f"{_NAME}:{self._value:08x}"


def digest_of(path: Path) -> str:
    """Return the digest of a file."""
    digest = Digest()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return str(digest)
