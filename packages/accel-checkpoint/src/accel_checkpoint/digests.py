"""Digests that detect damaged files.

The digest is XXH3, which is faster than memory; with 128 bits it misses damage with a probability of 2^-128. It is the
digest of the digests of blocks, so that several threads can check one file. It does not protect against deliberate
changes, since an attacker can change the manifest too. It starts with the name of the algorithm: files that earlier
releases saved have the CRC-32 of zip files.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from accel_checkpoint.files import raise_read_error

_BLOCK_BYTES = 16 * 2**20
_READ_BYTES = 2**20
"""Stays in the processor's cache."""
_NAME = "xxh3-16m"
_EARLIER_NAME = "crc32"
_NUM_THREADS = 4


class Digest:
    """The digest of all bytes passed to `update`."""

    num_bytes_of_all = 0  # passed to all digests of this process so far
    _counting = threading.Lock()

    def __init__(self) -> None:
        self._blocks, self._block = xxhash.xxh3_128(), xxhash.xxh3_128()
        self._room = _BLOCK_BYTES

    def update(self, data: bytes | memoryview) -> None:
        """Add the next bytes; releases the GIL."""
        rest = memoryview(data)
        Digest._count(len(rest))
        while len(rest):
            part, rest = rest[: self._room], rest[self._room :]
            self._block.update(part)
            self._room -= len(part)
            if not self._room:
                self._blocks.update(self._block.digest())
                self._block.reset()
                self._room = _BLOCK_BYTES

    def __str__(self) -> str:
        blocks = self._blocks.copy()
        if self._room < _BLOCK_BYTES:
            blocks.update(self._block.digest())
        return f"{_NAME}:{blocks.hexdigest()}"

    @classmethod
    def _count(cls, num_bytes: int) -> None:
        with cls._counting:
            cls.num_bytes_of_all += num_bytes


def digest_threads() -> ThreadPoolExecutor:
    """Return the threads that compute the digests of files."""
    return ThreadPoolExecutor(min(_NUM_THREADS, os.cpu_count() or 1), thread_name_prefix="accel-digest")


def begin_digest(path: Path, *, like: str, threads: ThreadPoolExecutor) -> Callable[[], str]:
    """Begin to compute the digest of a file, by the algorithm of ``like``; call the result to wait for it."""
    if like.startswith(_EARLIER_NAME):
        return threads.submit(_crc32_of, path).result
    blocks = [threads.submit(_digest_of_block, path, start) for start in _block_starts(path)]
    return lambda: _combined(block.result() for block in blocks)


def digest_of(path: Path, *, like: str = _NAME) -> str:
    """Return the digest of a file, by the algorithm of the digest ``like``."""
    if like.startswith(_EARLIER_NAME):
        return _crc32_of(path)
    starts = _block_starts(path)
    if len(starts) <= 1:
        return _combined(_digest_of_block(path, start) for start in starts)
    with digest_threads() as threads:
        return begin_digest(path, like=like, threads=threads)()


def _block_starts(path: Path) -> range:
    return range(0, path.stat().st_size, _BLOCK_BYTES)


def _combined(blocks: Iterable[bytes]) -> str:
    return f"{_NAME}:{xxhash.xxh3_128(b''.join(blocks)).hexdigest()}"


def _digest_of_block(path: Path, start: int) -> bytes:
    digest = xxhash.xxh3_128()
    for data in _read(path, start, _BLOCK_BYTES):
        digest.update(data)
    return digest.digest()


def _crc32_of(path: Path) -> str:
    value = 0
    for data in _read(path, 0, path.stat().st_size):
        value = zlib.crc32(data, value)
    return f"{_EARLIER_NAME}:{value:08x}"


def _read(path: Path, start: int, num_bytes: int) -> Iterator[memoryview]:
    """Yield the bytes of a file, in a buffer that is reused."""
    buffer = memoryview(bytearray(min(num_bytes, _READ_BYTES)))
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            while num_bytes and (num_read := file.readinto(buffer[:num_bytes])):
                num_bytes -= num_read
                Digest._count(num_read)
                yield buffer[:num_read]
    except OSError as error:
        raise_read_error(path, error)
        raise
