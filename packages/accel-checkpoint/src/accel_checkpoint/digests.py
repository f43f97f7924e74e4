"""Digests that detect damaged files.

The digest is the CRC-32 of zip files. It detects every error burst of up to 32 bits, and misses other damage with a
probability of 2^-32. SHA-256 would cost many times as much and dominate the time of a save. Neither protects against
deliberate changes, since an attacker can change the manifest too. The digest starts with the name of the algorithm, so
that a later release can use another one.
"""

from __future__ import annotations

import threading
import zlib
from pathlib import Path

from accel_checkpoint.files import naming_read_errors

_CHUNK_BYTES = 4 * 2**20
_NAME = "crc32"


class Digest:
    """The digest of all bytes passed to `update`."""

    num_bytes_of_all = 0  # passed to all digests of this process so far
    _counting = threading.Lock()

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes | memoryview) -> None:
        """Add the next bytes; releases the GIL."""
        self._value = zlib.crc32(data, self._value)
        with self._counting:
            Digest.num_bytes_of_all += len(data)

    def __str__(self) -> str:
        return f"{_NAME}:{self._value:08x}"


def digest_of(path: Path) -> str:
    """Return the digest of a file."""
    digest = Digest()
    with naming_read_errors(path), path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return str(digest)
