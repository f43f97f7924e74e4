"""Parallel reads of byte ranges into tensors on any device, overlapping with the copies to an accelerator."""

from __future__ import annotations

import ctypes
import functools
import os
import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from accel_bigmodel.transfers import Staged, copy_stream
from accel_checkpoint.formats.weight_files import ByteRange
from accel_checkpoint.progress import watched
from accel_state.errors import CheckpointError
from accel_state.user_warnings import is_main_process

_READ_BYTES = 8 << 20
_MOST_BUFFERS = 512  # per `preadv`; Linux allows 1024 (IOV_MAX)
_NUM_THREADS = 4
_NUM_STAGED = 6  # more than threads, so that a thread need not wait for the copy of its last buffer


class _Part(NamedTuple):
    """Adjacent bytes of a file, and where they belong: elements of ``tensor`` from ``first`` on.

    ``device`` is that of the tensor, ``None`` if the bytes can be read into its memory.
    """

    start: int
    num_bytes: int
    stored: torch.dtype
    tensor: torch.Tensor
    first: int
    device: torch.device | None


@functools.cache
def can_read_to(device: torch.device) -> bool:
    """Whether `ParallelReads` fills tensors on ``device``."""
    return device.type == "cpu" or copy_stream(device) is not None


class ParallelReads:
    """Reads from many files, into tensors on the CPU without a copy, into others through a ring of buffers.

    The tensors must be contiguous and stay alive until `run` returns.
    """

    def __init__(self) -> None:
        self._parts: dict[Path, list[_Part]] = {}
        self._streams: dict[torch.device, Any] = {}
        self._ring: queue.SimpleQueue[Staged] = queue.SimpleQueue()
        self._num_bytes = 0  # that have been read

    def add(self, tensor: torch.Tensor, path: Path, place: ByteRange) -> None:
        """Fill ``tensor``, contiguous and on any device, with the values at ``place`` in a file, cast to its dtype.

        Raises:
            ValueError: If it has another number of elements, or is not contiguous.
        """
        item = place.dtype.itemsize
        if tensor.numel() * item != place.num_bytes or not tensor.is_contiguous():
            raise ValueError(
                f"{place.num_bytes} bytes of `{path}` cannot be read into a tensor of shape {tuple(tensor.shape)}. "
                "The file is damaged: copy it again."
            )
        device = None if _is_in_place(tensor, place.dtype) else tensor.device
        parts = self._parts.setdefault(path, [])
        for done in range(0, place.num_bytes, _READ_BYTES):
            num_bytes = min(_READ_BYTES, place.num_bytes - done)
            parts.append(_Part(place.start + done, num_bytes, place.dtype, tensor, done // item, device))

    def run(self) -> None:
        """Perform all reads; returns when all values have arrived.

        Raises:
            CheckpointError: If a file ends too early.
        """
        devices = {part.device for parts in self._parts.values() for part in parts if part.device is not None}
        self._streams = {device: stream for device in devices if (stream := copy_stream(device)) is not None}
        for device, stream in self._streams.items():
            # The allocator may have given the tensors memory that queued kernels of the current stream still use.
            stream.wait_stream(torch.get_device_module(device).current_stream(device))
        for _ in range(_NUM_STAGED if devices else 0):
            self._ring.put(Staged(_READ_BYTES, is_pinned=bool(self._streams)))
        total = sum(part.num_bytes for parts in self._parts.values() for part in parts)
        try:
            with watched("Loading weights", lambda: self._num_bytes, total=total, is_shown=is_main_process):
                for path, parts in self._parts.items():
                    with (
                        path.open("rb", buffering=0) as file,
                        ThreadPoolExecutor(_NUM_THREADS, "accel-read") as pool,
                    ):
                        for num_bytes in pool.map(functools.partial(self._read, file, path), _jobs(parts)):
                            self._num_bytes += num_bytes
        finally:
            for stream in self._streams.values():
                stream.synchronize()  # the host waits: the caller may free buffers and tensors after this

    def _read(self, file: Any, path: Path, job: Sequence[_Part]) -> int:
        """Read adjacent parts, either all directly into tensors or all for one device; return their size."""
        num_bytes = sum(part.num_bytes for part in job)
        if job[0].device is None:
            buffers = [_memory_of(part) for part in job]
            _read_fully(file, path, buffers, job[0].start)
            return num_bytes
        staged = self._ring.get()
        try:
            memory = staged.reuse()
            _read_fully(file, path, [memory[:num_bytes].numpy().data], job[0].start)
            staged.copied = self._copy(memory, job)
        finally:
            self._ring.put(staged)
        return num_bytes

    def _copy(self, memory: torch.Tensor, job: Sequence[_Part]) -> Any:
        """Copy parts to their device and convert them there; return an event if the copy is asynchronous."""
        device = job[0].tensor.device
        stream = self._streams.get(device)
        if stream is None:
            with torch.no_grad():
                for part, values in _values_in(memory, job):
                    _elements(part).copy_(values)
            return None
        with torch.get_device_module(device).stream(stream), torch.no_grad():
            for part, values in _values_in(memory, job):
                is_async = values.is_pinned()
                if values.dtype != part.tensor.dtype:  # converted on the device
                    values = values.to(device, non_blocking=is_async)
                _elements(part).copy_(values, non_blocking=is_async)
            return stream.record_event()


def _is_in_place(tensor: torch.Tensor, stored: torch.dtype) -> bool:
    """Whether bytes of a file can be read into the memory of ``tensor``."""
    return tensor.is_cpu and tensor.dtype == stored


def _jobs(parts: list[_Part]) -> Iterator[list[_Part]]:
    """Yield runs of adjacent parts for one device, up to the size of one read."""
    job: list[_Part] = []
    end = num_bytes = 0
    for part in sorted(parts, key=lambda part: part.start):
        is_next = job and part.start == end and part.device == job[0].device and len(job) < _MOST_BUFFERS
        if job and not (is_next and num_bytes + part.num_bytes <= _READ_BYTES):
            yield job
            job, num_bytes = [], 0
        job.append(part)
        end, num_bytes = part.start + part.num_bytes, num_bytes + part.num_bytes
    if job:
        yield job


def _elements(part: _Part) -> torch.Tensor:
    """Return the elements of a tensor that a part fills."""
    num_elements = part.num_bytes // part.stored.itemsize
    return part.tensor.detach().view(-1)[part.first : part.first + num_elements]


def _values_in(memory: torch.Tensor, job: Sequence[_Part]) -> Iterator[tuple[_Part, torch.Tensor]]:
    """Yield each part with its values in ``memory``, copied if they are not aligned."""
    for part in job:
        begin = part.start - job[0].start
        raw = memory[begin : begin + part.num_bytes]
        yield part, (raw.clone() if begin % part.stored.itemsize else raw).view(part.stored)


def _memory_of(part: _Part) -> Any:
    """Return the memory of a tensor that a part is read into."""
    # Not `tensor.numpy()`, which refuses bfloat16 and fp8.
    address = part.tensor.data_ptr() + part.first * part.stored.itemsize
    return (ctypes.c_char * part.num_bytes).from_address(address)


def _read_fully(file: Any, path: Path, buffers: Sequence[Any], position: int) -> None:
    """Fill ``buffers`` with the bytes from ``position`` on."""
    got = os.preadv(file.fileno(), buffers, position) if hasattr(os, "preadv") else 0
    for buffer in buffers:  # one call may return early, and not every system can read into several buffers
        view = memoryview(buffer).cast("B")
        position += len(view)
        skipped = min(got, len(view))
        got, view = got - skipped, view[skipped:]
        while len(view):
            num_read = _read_at(file, view, position - len(view))
            if not num_read:
                raise CheckpointError(f"`{path}` ends too early. Copy or save it again.")
            view = view[num_read:]


def _read_at(file: Any, view: memoryview, position: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(file.fileno(), [view], position)
    # Without `preadv` (Windows) all threads would share the position of the descriptor: open the file again.
    with open(file.name, "rb", buffering=0) as other:  # noqa: PTH123
        other.seek(position)
        return other.readinto(view) or 0
