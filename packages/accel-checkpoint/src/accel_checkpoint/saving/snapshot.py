"""Host memory for snapshots of what is saved in the background."""

from __future__ import annotations

from typing import Any

import torch

from accel_checkpoint.tensors import copy_of, is_plain, map_tensors


class HostBuffers:
    """Host memory for snapshots of tensors, reused from one save to the next.

    The copies are valid until the next `begin`. For an accelerator the memory is pinned and the copies are
    asynchronous: later work on the device waits for them after `join_streams`, and the host waits in `wait`.
    """

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []  # in the order in which tensors were copied
        self._num_used = 0
        self._streams: dict[torch.device, Any] = {}

    def begin(self) -> None:
        """Start a new snapshot in the memory of the last one."""
        del self._buffers[self._num_used :]
        self._num_used, self._streams = 0, {}

    def snapshot(self, content: Any) -> Any:
        """Return ``content`` with copies of its tensors."""
        return map_tensors(content, self._copy)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        if not is_plain(tensor):
            return copy_of(tensor)
        number, self._num_used = self._num_used, self._num_used + 1
        buffer = self._buffers[number] if number < len(self._buffers) else None
        is_pinned = tensor.device.type != "cpu" and torch.accelerator.is_available()
        wanted = tensor.shape, tensor.dtype, is_pinned
        if buffer is None or (buffer.shape, buffer.dtype, buffer.is_pinned()) != wanted:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=is_pinned)
            self._buffers[number : number + 1] = [buffer]
        device = tensor.device
        module: Any = None if device.type == "cpu" else torch.get_device_module(device)
        if not hasattr(module, "Stream"):
            return buffer.copy_(tensor)
        if device not in self._streams:
            self._streams[device] = module.Stream(device)
            self._streams[device].wait_stream(module.current_stream(device))
        with module.stream(self._streams[device]):
            return buffer.copy_(tensor, non_blocking=True)

    def join_streams(self) -> None:
        """Make later work on the devices wait for the copies."""
        for device, stream in self._streams.items():
            torch.get_device_module(device).current_stream(device).wait_stream(stream)

    def wait(self) -> None:
        """Block until all copies are complete."""
        for stream in self._streams.values():
            stream.synchronize()

    def release(self) -> None:
        """Release the memory; call it when nothing writes the copies any more."""
        self._buffers = []

    @property
    def num_bytes(self) -> int:
        """Size of all buffers."""
        return sum(buffer.nbytes for buffer in self._buffers)
