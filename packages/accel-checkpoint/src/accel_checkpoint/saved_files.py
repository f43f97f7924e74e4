"""The files of one checkpoint, compared with its manifest when they are read."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from accel_checkpoint.digests import begin_digest, digest_of, digest_threads
from accel_checkpoint.files import files_below, regular_file
from accel_checkpoint.manifest import Manifest, has_manifest, read_manifest
from accel_state.errors import CheckpointError

_SMALL_BYTES = 16 * 2**20
"""Files of at most this size are not worth a thread."""


class DamagedFileError(CheckpointError):
    """A file of a checkpoint is not what was saved; an error also for loads that are not strict."""


class SavedFiles:
    """The files of one checkpoint. Each is compared with its digest in the manifest when its path is first requested.

    In a `with` block, threads compute the digests of large files while these are read, and the end of the block
    compares them: do not use what was read before that. Others, and all files outside of a block, are compared at once.

    Args:
        folder: The folder of the checkpoint.
        manifest: Its manifest; without one, as in checkpoints of other packages, there is nothing to compare.
    """

    def __init__(self, folder: Path, manifest: Manifest | None) -> None:
        self.folder = folder
        self._entries = {} if manifest is None else {one.name: one for one in manifest.files_here}
        self._waiting: list[tuple[Path, Callable[[], str], str]] = []
        self._threads: ThreadPoolExecutor | None = None
        self._is_in_block = False

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Return the files of the checkpoint in ``folder``.

        Raises:
            CheckpointError: If its manifest is damaged.
        """
        return cls(folder, read_manifest(folder) if has_manifest(folder) else None)

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all files in the folder, also of those that the manifest does not list."""
        return frozenset(files_below(self.folder))

    def path(self, name: str) -> Path:
        """Return the path of a file.

        Raises:
            DamagedFileError: If its digest differs; that of a large file, at the end of the `with` block.
            CheckpointError: As `regular_file`.
        """
        path = regular_file(self.folder, name)
        entry = self._entries.get(name)
        if entry is not None:
            if not self._is_in_block or entry.num_bytes <= _SMALL_BYTES:
                _compare(path, digest_of(path, like=entry.digest), entry.digest)
            else:
                self._threads = self._threads or digest_threads()
                digest = begin_digest(path, like=entry.digest, threads=self._threads)
                self._waiting.append((path, digest, entry.digest))
            del self._entries[name]
        return path

    def compare_all(self) -> None:
        """Compare all files that the manifest lists."""
        for name in list(self._entries):
            self.path(name)

    def __enter__(self) -> Self:
        self._is_in_block = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # Damage explains any other error; an interruption does not wait for the threads.
            if error is None or isinstance(error, Exception):
                for path, digest, expected in self._waiting:
                    _compare(path, digest(), expected)
        finally:
            if self._threads is not None:
                self._threads.shutdown(cancel_futures=True)
            self._threads, self._is_in_block = None, False
            self._waiting.clear()


def problems_of(folder: Path, manifest: Manifest, *, digests: bool) -> list[str]:
    """Return one message per file in ``folder`` that differs from the manifest.

    Args:
        folder: The folder of the checkpoint.
        manifest: Its manifest.
        digests: Compare digests, which reads every file; otherwise compare sizes only.
    """
    found = []
    for entry in manifest.files_here:
        try:
            path = regular_file(folder, entry.name)
        except CheckpointError as error:
            found.append(str(error))
            continue
        size = path.stat().st_size
        if size != entry.num_bytes:
            found.append(f"`{entry.name}` has {size} bytes instead of {entry.num_bytes}.")
        elif digests and digest_of(path, like=entry.digest) != entry.digest:
            found.append(f"`{entry.name}` is not what was saved: its digest differs.")
    return found


def _compare(path: Path, digest: str, expected: str) -> None:
    if digest != expected:
        raise DamagedFileError(
            f"`{path}` is not what was saved: its digest differs. Load another checkpoint, or copy this one again."
        )
