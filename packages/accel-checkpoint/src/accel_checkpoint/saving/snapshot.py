"""Host memory for snapshots of what is saved in the background."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from accel_checkpoint.tensors import is_plain, map_tensors, with_inner

_NUM_SLOTS, _SLOT_BYTES = 8, 8 << 20


class HostBuffers:
    """Host memory for snapshots of tensors, reused from one save to the next.

    The copies are valid until the next `begin`. Those of tensors on an accelerator are complete after `wait`; later
    work on the device waits for them after `join_streams`.
    """

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []  # in the order in which tensors were copied
        self._num_used = 0
        self._rings: dict[torch.device, _PinnedRing] = {}

    def begin(self) -> None:
        """Start a new snapshot in the memory of the last one."""
        del self._buffers[self._num_used :]
        self._num_used, self._rings = 0, {}

    def snapshot(self, content: Any) -> Any:
        """Return ``content`` with copies of its tensors."""
        return map_tensors(content, lambda tensor: with_inner(tensor.detach(), self._copy))

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if not is_plain(tensor):
            return tensor.to("cpu", copy=True)
        number, self._num_used = self._num_used, self._num_used + 1
        buffer = self._buffers[number] if number < len(self._buffers) else None
        if buffer is None or (buffer.shape, buffer.dtype) != (tensor.shape, tensor.dtype):
            # NumPy, unlike torch, requests huge pages, with which the first use takes a fraction of the time.
            memory = torch.from_numpy(np.empty(tensor.nbytes, np.uint8)).untyped_storage()
            empty: Any = torch.empty(0, dtype=tensor.dtype, device="cpu")
            buffer = empty.set_(memory, 0, tensor.shape)
            self._buffers[number : number + 1] = [buffer]
        device, module = tensor.device, streams_of(tensor.device)
        if module is None:
            return buffer.copy_(tensor)
        if device not in self._rings:
            self._rings[device] = _PinnedRing(device, module)
        self._rings[device].copy(tensor, buffer)
        return buffer

    def join_streams(self) -> None:
        """Make later work on the devices wait for the copies."""
        for ring in self._rings.values():
            ring.join()

    def wait(self) -> None:
        """Block until all copies are complete."""
        for ring in self._rings.values():
            ring.wait()
        self._rings = {}

    def release(self) -> None:
        """Release the memory; call it when nothing writes the copies any more."""
        self._buffers = []

    @property
    def num_bytes(self) -> int:
        """Size of all buffers."""
        return sum(buffer.nbytes for buffer in self._buffers)


class CallersStreams(HostBuffers):
    """Waits, in place of copying, until the caller's streams have computed the tensors: other threads have others."""

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if (module := streams_of(tensor.device)) is not None:
            module.current_stream(tensor.device).synchronize()
        return tensor


def streams_of(device: torch.device) -> Any:
    """Return torch's module of a device whose work is ordered by streams; None for other devices."""
    module = None if device.type == "cpu" else getattr(torch, device.type, None)
    return module if hasattr(module, "Stream") else None


class _PinnedRing:
    """Copies tensors of a device to pageable memory, through a few pinned slots that threads empty.

    To pin all of that memory would take many times as long as the copy.
    """

    def __init__(self, device: torch.device, module: Any) -> None:
        self._device, self._module = device, module
        self._stream = module.Stream(device)
        self._stream.wait_stream(module.current_stream(device))
        shape, is_pinned = (_NUM_SLOTS, _SLOT_BYTES), torch.accelerator.is_available()
        self._slot, *others = torch.empty(shape, dtype=torch.uint8, device="cpu", pin_memory=is_pinned)
        (emptied := Future[None]()).set_result(None)
        self._others = deque((slot, emptied) for slot in others)
        self._parts: list[tuple[torch.Tensor, torch.Tensor]] = []  # of the slot, each with its target
        self._num_filled = 0
        self._pool = ThreadPoolExecutor(
            _NUM_SLOTS, "accel-checkpoint", initializer=module.set_device, initargs=(device,)
        )

    def copy(self, tensor: torch.Tensor, target: torch.Tensor) -> None:
        """Begin to copy a tensor to a contiguous one."""
        with self._module.stream(self._stream):
            source = tensor.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
            target = target.view(-1).view(torch.uint8)
            while len(source):
                part = self._slot[self._num_filled :][: len(source)]
                part.copy_(source[: len(part)], non_blocking=True)
                self._parts.append((part, target[: len(part)]))
                self._num_filled += len(part)
                source, target = source[len(part) :], target[len(part) :]
                if self._num_filled == _SLOT_BYTES:
                    self._empty_slot()

    def _empty_slot(self) -> None:
        """Begin to empty the slot, and wait until the next one is empty."""
        emptied = self._pool.submit(_move, self._stream.record_event(), self._parts)
        self._others.append((self._slot, emptied))
        self._slot, emptied = self._others.popleft()
        self._num_filled, self._parts = 0, []
        emptied.result()

    def join(self) -> None:
        """Make later work on the device wait for the copies."""
        self._empty_slot()
        self._module.current_stream(self._device).wait_stream(self._stream)

    def wait(self) -> None:
        """Block until all copies are complete."""
        for _, emptied in self._others:
            emptied.result()
        self._pool.shutdown()


def _move(event: Any, parts: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    event.synchronize()
    for part, target in parts:
        np.copyto(target.numpy(), part.numpy())  # `copy_` would start threads for each thread
