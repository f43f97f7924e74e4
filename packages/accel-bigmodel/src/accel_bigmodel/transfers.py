"""Copies of stored values to their device, on CUDA and ROCm in a side stream."""

from __future__ import annotations

import functools
import mmap
import queue
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from accel_state.devices import device_backend

_STAGED_BYTES = 4 << 20
_NUM_STAGED = 4
_LEAST_PINNED = 32 << 20
"""Smallest storage, in bytes, that is pinned; smaller ones pass through the buffers.

Allocators place storages of this size in separate pages (glibc: `DEFAULT_MMAP_THRESHOLD_MAX`). If a part of another
tensor were in a locked page, CUDA would reject every copy of that tensor, also in the user's code.
"""


class Staged:
    """A buffer for bytes on their way to an accelerator."""

    def __init__(self, num_bytes: int, *, is_pinned: bool) -> None:
        self.memory = torch.empty(num_bytes, dtype=torch.uint8, device="cpu", pin_memory=is_pinned)
        self.copied: Any = None  # event of the last copy out of the buffer

    def reuse(self) -> torch.Tensor:
        """Return the memory, of shape ``(num_bytes,)`` on the CPU, after the copies out of it are complete."""
        if self.copied is not None:
            self.copied.synchronize()  # the host waits: it is about to overwrite what the device still reads
            self.copied = None
        return self.memory


@dataclass(slots=True)
class Transfer:
    """A copy to a device, which may still be in progress.

    Args:
        tensor: The values on the device, of any shape.
        event: Recorded at the end of the copy, if it may be in progress.
        stream: The stream of the copy.
        reads_stored: Whether the stored values must not be written to before the copy is done.
    """

    tensor: torch.Tensor
    event: Any = None
    stream: Any = None
    reads_stored: bool = False

    def wait(self) -> torch.Tensor:
        """Make the current stream wait for the copy, and return the tensor on its device, in the stored shape."""
        streams = streams_of(self.tensor.device) if self.event is not None else None
        if streams is not None:
            streams.current().wait_event(self.event)
            streams.record_use(self.tensor)
        return self.tensor


class Streams:
    """The streams of one device, with one for copies that overlap with the computation."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._module = device, torch.get_device_module(device)
        self.copies = self._module.Stream(device)
        self._ring: queue.SimpleQueue[Staged] | None = None

    def current(self) -> Any:
        """Return the current stream of this thread."""
        return self._module.current_stream(self.device)

    def record_use(self, tensor: torch.Tensor) -> None:
        """Keep the memory of ``tensor``, of any shape on this device, until the current stream has used it."""
        tensor.record_stream(self.current())

    def copy(self, stored: torch.Tensor, *, in_background: bool) -> Transfer:
        """Start to copy a CPU tensor of any shape in the side stream (``in_background``) or in the current stream."""
        stream, is_pinned = self.copies if in_background else self.current(), stored.is_pinned()
        with self._module.stream(stream):
            if is_pinned or not in_background:
                copied = stored.to(self.device, copy=True, non_blocking=is_pinned)
            else:
                copied = self._through_buffers(stored, stream)
            return Transfer(copied, stream.record_event(), stream, is_pinned)

    def _through_buffers(self, stored: torch.Tensor, stream: Any) -> torch.Tensor:
        """Copy unpinned values through buffers; the host reads them and waits for a free buffer, not for the copies."""
        if self._ring is None:
            self._ring = queue.SimpleQueue()
            for _ in range(_NUM_STAGED):
                self._ring.put(Staged(_STAGED_BYTES, is_pinned=True))
        stored = stored.resolve_conj().resolve_neg()
        copied = torch.empty_like(stored, device=self.device)
        if copied.stride() != stored.stride():
            stored = stored.contiguous()  # it has gaps, which `empty_like` does not keep
            copied = torch.empty_like(stored, device=self.device)
        for source, target in zip(_pieces(stored), _pieces(copied), strict=True):
            staged = self._ring.get()
            try:
                memory = staged.reuse()[: source.numel()]
                memory.copy_(source)
                target.copy_(memory, non_blocking=True)
                staged.copied = stream.record_event()
            finally:
                self._ring.put(staged)
        return copied


def _pieces(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the bytes of a tensor without gaps, in the order of its memory."""
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return torch.split(flat.view(torch.uint8), _STAGED_BYTES) if flat.numel() else ()


@functools.cache
def streams_of(device: torch.device) -> Streams | None:
    """Return the streams of a device, ``None`` if copies to it block.

    Only for CUDA and ROCm: streams of other accelerators are untested.
    """
    return Streams(device) if device.type == "cuda" else None


def copy_stream(device: torch.device) -> Any:
    """Return the side stream for copies to ``device``, ``None`` if copies to it block."""
    streams = streams_of(device)
    return None if streams is None else streams.copies


def start_transfer(stored: torch.Tensor, device: torch.device, *, prefetch: bool = False) -> Transfer:
    """Start to copy ``stored``, of any shape, to ``device``; with ``prefetch`` in the side stream."""
    streams = streams_of(device) if stored.device.type == "cpu" else None
    return (
        Transfer(stored.to(device, copy=True))
        if streams is None
        else streams.copy(stored, in_background=prefetch)
    )


class PinnedMemory:
    """Pins the memory of CPU tensors of any shape in place, so that accelerators read it at the speed of the bus.

    It is unpinned when this object is released. At most half of the machine's memory is pinned; small tensors and
    mapped files are not.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        room = device_backend("cpu").free_and_total_bytes()[1] // 2
        worthy = [t for t in tensors if is_worth_pinning(t) and not t.is_pinned()]
        storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in worthy}
        locked: list[int] = []
        # The finalizer keeps the storages alive: memory that is freed while locked can never be locked again.
        weakref.finalize(self, _unlock, locked, list(storages.values())).atexit = False  # the system unlocks
        for storage in storages.values():
            begin = storage.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE  # memory is locked by pages
            num_bytes = -(-(storage.data_ptr() + storage.nbytes() - begin) // mmap.PAGESIZE) * mmap.PAGESIZE
            room -= num_bytes
            if room < 0 or not _lock(begin, num_bytes):
                return
            locked.append(begin)


def is_worth_pinning(tensor: torch.Tensor) -> bool:
    """Whether a tensor of any shape is large and in ordinary CPU memory: pinning a mapped file would read all of it."""
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.is_cpu
    return (
        is_plain and (storage := tensor.untyped_storage()).nbytes() >= _LEAST_PINNED and storage.resizable()
    )


def _lock(address: int, num_bytes: int) -> bool:
    runtime: Any = torch.cuda
    if int(runtime.cudart().cudaHostRegister(address, num_bytes, 1)) == 0:  # 1: for all devices
        return True
    with suppress(RuntimeError):
        torch.ones(1, device="cuda")  # consume the error of the failed call, which the next kernel reports
    return False


def _unlock(addresses: list[int], storages: list[torch.UntypedStorage]) -> None:
    runtime: Any = torch.cuda
    if addresses:
        runtime.synchronize()  # the host waits: copies may still read the memory
    for address in addresses:
        runtime.cudart().cudaHostUnregister(address)
    storages.clear()
