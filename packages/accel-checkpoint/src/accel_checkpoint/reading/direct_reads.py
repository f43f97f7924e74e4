"""Read bytes of a file directly into the memory of tensors, in file order, with several threads and no buffer."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import torch

from accel_state.errors import CheckpointError

_JOB_BYTES = 32 << 20
_MOST_BUFFERS = 512  # the system allows 1024 per call
_NUM_THREADS = 4


Segment: TypeAlias = tuple[int, int, int]
"""A run of bytes in a file, for one address in memory: ``(start, num_bytes, address)``."""


class DirectReads:
    """Reads from one file.

    The tensors must be contiguous, on the CPU, and stay alive until `run` returns.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._segments: list[Segment] = []

    def add(self, tensor: torch.Tensor, start: int, num_bytes: int) -> None:
        """Fill ``tensor`` with the bytes from ``start`` on.

        Raises:
            ValueError: If it does not take exactly that many bytes: memory beyond it would be overwritten.
        """
        if tensor.nbytes != num_bytes or not tensor.is_contiguous() or not tensor.is_cpu:
            raise ValueError(
                f"{num_bytes} bytes of `{self._path}` cannot be read into a tensor of {tensor.nbytes} bytes "
                f"on `{tensor.device}`."
            )
        if num_bytes:
            self._segments.append((start, num_bytes, tensor.data_ptr()))

    def jobs(self) -> Iterator[list[Segment]]:
        """Yield adjacent segments, as many as fit into one read."""
        job: list[Segment] = []
        begin = end = 0
        for segment in sorted(self._segments):
            for piece in (segment,) if segment[1] <= _JOB_BYTES else _pieces(segment):
                start, num_bytes, _ = piece
                if job and (
                    start != end or end + num_bytes - begin > _JOB_BYTES or len(job) == _MOST_BUFFERS
                ):
                    yield job
                    job = []
                if not job:
                    begin = start
                job.append(piece)
                end = start + num_bytes
        if job:
            yield job

    def run(self) -> None:
        """Perform all reads.

        Raises:
            CheckpointError: If the file ends too early.
        """
        jobs = list(self.jobs())
        with self._path.open("rb", buffering=0) as file:
            num_threads = min(_NUM_THREADS, os.cpu_count() or 1, len(jobs))
            if num_threads <= 1:
                for job in jobs:
                    self._read(file, job)
                return
            with ThreadPoolExecutor(num_threads, thread_name_prefix="accel-read") as pool:
                for _ in pool.map(lambda job: self._read(file, job), jobs):
                    pass

    def _read(self, file: Any, job: Sequence[Segment]) -> None:
        buffers = [(ctypes.c_char * num_bytes).from_address(address) for _, num_bytes, address in job]
        position, got = job[0][0], 0
        wanted = job[-1][0] + job[-1][1] - position
        if hasattr(os, "preadv"):
            got = os.preadv(file.fileno(), buffers, position)
        if got < wanted:
            self._read_rest(file.fileno(), buffers, position, skip=got)

    def _read_rest(self, descriptor: int, buffers: Sequence[Any], position: int, *, skip: int) -> None:
        """Read what one call left out: it may return early, and not every system can read into several buffers."""
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            position += len(view)
            skipped = min(skip, len(view))
            skip -= skipped
            view = view[skipped:]
            while len(view):
                begin = position - len(view)
                part = _read_at(descriptor, view, begin)
                if not part:
                    raise CheckpointError(f"`{self._path}` ends too early. Copy or save it again.")
                view = view[part:]


def _read_at(descriptor: int, view: memoryview, begin: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [view], begin)
    # For systems without `pread`; the duplicated descriptor leaves the position of others unchanged.
    with open(os.dup(descriptor), "rb", buffering=0) as file:  # noqa: PTH123
        file.seek(begin)
        return file.readinto(view) or 0


def _pieces(segment: Segment) -> Iterator[Segment]:
    start, num_bytes, address = segment
    for done in range(0, num_bytes, _JOB_BYTES):
        yield start + done, min(_JOB_BYTES, num_bytes - done), address + done
