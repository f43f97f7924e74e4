"""A file writer that computes the digest on the way, in chunks that do not block other threads, and a progress bar."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import NoneType, TracebackType
from typing import Any, Self

from accel_checkpoint.digests import Digest
from accel_checkpoint.manifest import FileEntry
from accel_checkpoint.saving.snapshot import nonfinite_in

_BUFFER_BYTES = 2**16
"""Smaller pieces are collected: `torch.save` writes a few bytes before and after each tensor."""
_CHUNK_BYTES = 4 * 2**20
"""Small enough to be in the processor's cache for both the digest and the write; neither holds the GIL."""


QUIET_S = 3.0
"""Shorter work shows no progress bar."""


Advance = Callable[[int], object]
"""Receives numbers of bytes that were written since the last call."""


@contextmanager
def progress_bar(
    label: str, *, is_shown: bool = True, total: int | None = None, quiet_s: float = QUIET_S
) -> Iterator[Advance | None]:
    """Show in the block how many bytes have been written, and yield what advances the bar.

    Args:
        label: Text before the number.
        is_shown: Whether this process shows the bar.
        total: Number of bytes in the end, if known; headers of files come on top.
        quiet_s: How long the work takes before the bar appears.
    """
    try:
        from tqdm.auto import tqdm
    except ModuleNotFoundError:
        is_shown = False
    if not is_shown:
        yield None
        return
    with tqdm(desc=label, total=total, delay=quiet_s, unit="B", unit_scale=True, unit_divisor=1024) as bar:
        yield lambda num_bytes: bar.update(num_bytes if total is None else min(num_bytes, total - bar.n))


class FileSink:
    """Writes a new file and forces it to disk; `torch.save` accepts it as a file object.

    Args:
        path: The file, which must not exist yet.
        advance: Called with the number of bytes written, again and again.
    """

    def __init__(self, path: Path, *, advance: Advance | None = None) -> None:
        self._path = path
        self._descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666
        )
        self._buffer = bytearray()
        self._digest = Digest()
        self._digest_of_all = ""
        self._advance = advance
        self._error: OSError | None = None
        self._num_begun = 0  # bytes that the disk has been told to write
        self.num_bytes = 0
        self.note = ""
        """What rank 0 needs to know about the content; see `MergedFile`."""
        self.nonfinite = ""
        """Name of the first tensor with values that are not finite."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._flush()
                self._digest_of_all = str(self._digest)
                os.fsync(self._descriptor)
        except OSError as failed:
            self._keep(failed)
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
        self.num_bytes += len(view)
        if len(self._buffer) + len(view) <= _BUFFER_BYTES:
            self._buffer += view
            return len(view)
        self._flush()
        for start in range(0, len(view), _CHUNK_BYTES):
            self._append(view[start : start + _CHUNK_BYTES])
        return len(view)

    def examine(self, content: Any) -> None:
        """Look for values that are not finite in nested containers that are written."""
        self.nonfinite = self.nonfinite or nonfinite_in(content)

    def flush(self) -> None:
        """Do nothing: what is collected is written when the file is closed."""

    def _flush(self) -> None:
        collected, self._buffer = self._buffer, bytearray()
        if collected:
            self._append(memoryview(collected))

    def _append(self, chunk: memoryview) -> None:
        self._digest.update(chunk)
        if self._advance is not None:
            self._advance(len(chunk))
        try:
            while chunk:
                chunk = chunk[os.write(self._descriptor, chunk) :]
            self._begin_flush()
        except OSError as error:
            self._keep(error)
            raise self._error from error  # type: ignore[misc]  # `_keep` has set it

    def _begin_flush(self) -> None:
        """Let the disk write while more is computed: `fsync` would begin with it at the end."""
        written = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        if written - self._num_begun >= _CHUNK_BYTES and hasattr(os, "posix_fadvise"):
            with suppress(OSError):  # a hint that some file systems do not take
                # Linux begins to write these pages, and drops only those that are on the disk by then.
                os.posix_fadvise(
                    self._descriptor, self._num_begun, written - self._num_begun, os.POSIX_FADV_DONTNEED
                )
            self._num_begun = written

    def _keep(self, error: OSError) -> None:
        """Keep the first error: `torch.save` may call `write` again after one."""
        self._error = self._error or _with_the_file(error, self._path)

    def entry(self, name: str, *, rank: int = 0, place: int = 0) -> FileEntry:
        """Return the manifest entry of the file, once it is closed."""
        return FileEntry(
            name, self.num_bytes, self._digest_of_all, rank=rank, place=place, nonfinite=self.nonfinite
        )


def _with_the_file(error: OSError, path: Path) -> OSError:
    """Return the error with the name of the file, and with the free bytes if the disk is full."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason += f" ({shutil.disk_usage(path.parent).free} bytes are free on the disk; free some, or save elsewhere)"
    return OSError(error.errno, reason, str(path))
