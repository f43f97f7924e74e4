"""A file writer that writes in a thread while its caller gets what comes next."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType

from accel_checkpoint.saving.low_priority import Work, run_inline
from accel_checkpoint.saving.sink import FileSink


class FileSinkBehind(FileSink):
    """Writes one piece while the caller gets the next; so two of them are in memory.

    Args:
        path: The file, which must not exist yet.
        run: Runs the digest computation and the writes.
    """

    def __init__(self, path: Path, *, run: Callable[[Work], None] = run_inline) -> None:
        super().__init__(path, run=run)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="accel-checkpoint")
        self._pending: Future[int] | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()
        failed = None if self._pending is None else self._pending.exception()
        super().__exit__(kind, error or failed, trace)
        if error is None and failed is not None:
            raise failed

    def write(self, data: bytes | memoryview) -> int:
        """Append ``data``, which must not change until the next call, and return its size in bytes.

        Raises what went wrong with the piece before.
        """
        if self._pending is not None:
            self._pending.result()
        self._pending = self._pool.submit(partial(super().write, data))
        return memoryview(data).nbytes
