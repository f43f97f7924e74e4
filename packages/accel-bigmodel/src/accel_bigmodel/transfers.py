"""Copies of values to the device where they are used, on an accelerator in a stream beside the computation."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(slots=True)
class Transfer:
    """A copy to a device, which may still be in progress.

    Args:
        tensor: The values on the device.
        event: Recorded when the copy is done, if it runs in a side stream.
        source: What the copy reads from; kept alive until it is done.
    """

    tensor: torch.Tensor
    event: Any = None
    source: torch.Tensor | None = None

    def wait(self) -> torch.Tensor:
        """Make the current stream wait for the copy, and return the tensor."""
        if self.event is not None:
            stream = torch.get_device_module(self.tensor.device).current_stream(self.tensor.device)
            stream.wait_event(self.event)
            self.tensor.record_stream(stream)
            self.event = self.source = None
        return self.tensor


def start_transfer(stored: torch.Tensor, device: torch.device, *, prefetch: bool = False) -> Transfer:
    """Start to copy ``stored`` to ``device``; prefetched values pass through pinned memory in a side stream."""
    stream = copy_stream(device) if prefetch and stored.device.type == "cpu" else None
    if stream is None:
        return Transfer(stored.to(device, copy=True))
    pinned = stored if stored.is_pinned() else stored.contiguous().pin_memory()
    with torch.get_device_module(device).stream(stream):
        copied = pinned.to(device, non_blocking=True)
        event = stream.record_event()
    return Transfer(copied, event, pinned)


@functools.cache
def copy_stream(device: torch.device) -> Any:
    """Return the stream for copies to ``device`` beside its computation, ``None`` where copies block.

    Only CUDA and ROCm have one: streams of other accelerators are untested.
    """
    return torch.get_device_module(device).Stream(device) if device.type == "cuda" else None
