"""Host memory for snapshots of what is saved in the background."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from accel_checkpoint.tensors import is_plain, leaves, map_tensors, with_inner

_NUM_THREADS, _CHUNK_BYTES = 8, 8 << 20


class HostBuffers:
    """Host memory for snapshots of tensors, reused from one save to the next.

    The copies are valid until the next `start`.
    """

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []  # in the order of copying
        self._num_used = 0

    def start(self) -> None:
        """Start a new snapshot in the memory of the last one."""
        del self._buffers[self._num_used :]
        self._num_used = 0

    def snapshot(self, content: Any) -> Any:
        """Return ``content`` with copies of its tensors; waits for the work in the caller's streams."""
        fetched: dict[torch.device, list[tuple[torch.Tensor, torch.Tensor]]] = {}

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            if not is_plain(tensor):
                return tensor.to("cpu", copy=True)
            buffer = self._buffer_for(tensor)
            if streams_of(tensor.device) is None:
                return buffer.copy_(tensor)
            source = tensor.resolve_conj().resolve_neg().contiguous()
            fetched.setdefault(tensor.device, []).append((source, buffer))
            return buffer

        copied = map_tensors(content, lambda tensor: with_inner(tensor.detach(), copy))
        for device, pairs in fetched.items():
            _fetch(pairs, device)
        return copied

    def _buffer_for(self, tensor: torch.Tensor) -> torch.Tensor:
        number, self._num_used = self._num_used, self._num_used + 1
        buffer = self._buffers[number] if number < len(self._buffers) else None
        if buffer is None or (buffer.shape, buffer.dtype) != (tensor.shape, tensor.dtype):
            # NumPy, unlike torch, requests huge pages: the first use then takes a fraction of the time.
            memory = torch.from_numpy(np.empty(tensor.nbytes, np.uint8)).untyped_storage()
            empty: Any = torch.empty(0, dtype=tensor.dtype, device="cpu")
            buffer = empty.set_(memory, 0, tensor.shape)
            self._buffers[number : number + 1] = [buffer]
        return buffer

    def release(self) -> None:
        """Release the memory; call it when no thread writes the copies any more."""
        self._buffers = []


class CallersStreams(HostBuffers):
    """Waits for the work in the caller's streams instead of copying: other threads read in other streams."""

    def snapshot(self, content: Any) -> Any:
        """Return ``content`` when its tensors are computed."""
        for device in {value.device for _, value in leaves(content) if isinstance(value, torch.Tensor)}:
            _wait_for(device)
        return content


def _wait_for(device: torch.device) -> None:
    if (module := streams_of(device)) is not None:
        module.current_stream(device).synchronize()


def streams_of(device: torch.device) -> Any:
    """Return torch's module of a device whose work is ordered by streams; None for other devices."""
    module = None if device.type == "cpu" else getattr(torch, device.type, None)
    return module if hasattr(module, "set_stream") else None


def _fetch(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], device: torch.device) -> None:
    """Copy contiguous tensors of a device to the host by threads, each through a small pinned buffer.

    To pin the memory of all copies would take many times as long, and torch would keep up to twice as much for good.
    """
    module, of_thread, is_pinned = streams_of(device), threading.local(), torch.accelerator.is_available()

    def start() -> None:
        module.set_device(device)
        module.set_stream(module.Stream(device))
        of_thread.buffer = torch.empty(_CHUNK_BYTES, dtype=torch.uint8, device="cpu", pin_memory=is_pinned)

    def fetch(source: torch.Tensor, target: torch.Tensor) -> None:
        buffer = of_thread.buffer[: len(source)]
        buffer.copy_(source, non_blocking=True)
        module.current_stream(device).synchronize()
        np.copyto(target.numpy(), buffer.numpy())  # `copy_` would start threads for each thread

    _wait_for(device)
    with ThreadPoolExecutor(_NUM_THREADS, "accel-checkpoint", initializer=start) as pool:
        list(pool.map(fetch, _chunks(source for source, _ in pairs), _chunks(target for _, target in pairs)))


def _chunks(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    for flat in (tensor.view(-1).view(torch.uint8) for tensor in tensors):
        yield from (flat[start : start + _CHUNK_BYTES] for start in range(0, len(flat), _CHUNK_BYTES))
