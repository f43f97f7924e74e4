"""A file writer that computes the digest on the way, in chunks that do not block other threads."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import NoneType, TracebackType
from typing import Self

from accel_checkpoint.digests import Digest
from accel_checkpoint.saving.low_priority import Work, run_inline

_CHUNK_BYTES = 4 * 2**20
"""Small enough to be in the processor's cache for both the digest and the write; neither holds the GIL."""

_FLUSH_BYTES = 16 * 2**20
"""From so many bytes on, the disk is set to work on what is written, so that little is left to wait for at the end."""


class FileSink:
    """Writes a new file and forces it to disk; `torch.save` accepts it as a file object.

    Args:
        path: The file, which must not exist yet.
        run: Runs the digest computation and the writes.
    """

    def __init__(self, path: Path, *, run: Callable[[Work], None] = run_inline) -> None:
        self._path = path
        self._descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666
        )
        self._digest = Digest()
        self._run = run
        self._num_unflushed = 0
        self._flush: threading.Thread | None = None
        self._error: OSError | None = None
        self.num_bytes = 0
        self.note = ""
        """What rank 0 needs to know about the content; see `MergedFile`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._flush is not None:
                self._flush.join()
            if error is None and self._error is None:
                self._run(self._force_to_disk)
        finally:
            try:
                os.close(self._descriptor)
            except OSError as failed:
                self._keep(failed)
        # `torch.save` replaces the error of a write with one about positions in the file.
        if self._error is not None and self._error is not error and isinstance(error, (Exception, NoneType)):
            raise self._error from error

    def write(self, data: bytes | memoryview) -> int:
        """Append ``data`` and return its size in bytes."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _CHUNK_BYTES):
            self._run(partial(self._append, view[start : start + _CHUNK_BYTES]))
        self.num_bytes += len(view)
        return len(view)

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def _append(self, chunk: memoryview) -> None:
        self._digest.update(chunk)
        self._num_unflushed += len(chunk)
        try:
            while chunk:
                chunk = chunk[os.write(self._descriptor, chunk) :]
        except OSError as error:
            self._keep(error)
        if self._error is not None:
            raise self._error
        if self._num_unflushed >= _FLUSH_BYTES:
            self._flush_early()

    def _flush_early(self) -> None:
        """Let the disk work on what is written, unless it still works on what was written before."""
        if self._flush is not None and self._flush.is_alive():
            return
        self._num_unflushed = 0
        self._flush = threading.Thread(target=self._force_to_disk, name="accel-checkpoint-flush", daemon=True)
        try:
            self._flush.start()
        except RuntimeError:  # the interpreter is ending and starts no thread any more
            self._flush = None

    def _force_to_disk(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            self._keep(error)

    def _keep(self, error: OSError) -> None:
        """Keep the first error of the disk: of `fsync`, the kernel reports it only once."""
        self._error = self._error or _with_the_file(error, self._path)

    @property
    def digest(self) -> str:
        """The digest of the bytes written so far."""
        return str(self._digest)


def _with_the_file(error: OSError, path: Path) -> OSError:
    """Return the error with the name of the file, and with the free bytes if the disk is full."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason += f" ({shutil.disk_usage(path.parent).free} bytes are free on the disk; free some, or save elsewhere)"
    return OSError(error.errno, reason, str(path))
