"""Copy weights to their execution device."""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_PAGE_BYTES = 4096


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
    """Start to copy ``stored`` to ``device``; nothing is copied if it is there already.

    Args:
        stored: The values, in memory or mapped from a file.
        device: Where they are used.
        prefetch: They are needed later: read mapped pages now, and copy in a side stream.
    """
    if not is_copied(device) and stored.device.type == "cpu":
        if prefetch:
            _prefault(stored)
        return Transfer(stored)
    if prefetch and device.type == "cuda" and stored.device.type == "cpu":
        return _copy_in_side_stream(stored, device)
    return Transfer(stored.to(device, copy=True))


def is_copied(device: torch.device) -> bool:
    """Whether a weight that is used on ``device`` is a copy; on the CPU it is the stored tensor."""
    return device.type != "cpu"


def _prefault(tensor: torch.Tensor) -> None:
    """Read all pages of a mapped tensor into memory."""
    if tensor.is_contiguous() and tensor.nbytes >= _PAGE_BYTES and not is_in_memory(tensor):
        raw = tensor.detach().reshape(-1).view(torch.uint8)
        raw[::_PAGE_BYTES].max()


def is_in_memory(tensor: torch.Tensor) -> bool:
    """Whether all pages of a tensor are in memory; false where the system cannot tell.

    Touching pages that are in memory would cost the forward pass time and cache.
    """
    if tensor.device.type != "cpu":
        return True
    mincore = _mincore()
    if mincore is None:
        return False
    begin = tensor.data_ptr() // _PAGE_BYTES * _PAGE_BYTES
    num_bytes = tensor.data_ptr() + tensor.nbytes - begin
    found = ctypes.create_string_buffer(-(-num_bytes // _PAGE_BYTES))
    return mincore(begin, num_bytes, found) == 0 and 0 not in found.raw


@functools.cache
def _mincore() -> Callable[[int, int, Any], int] | None:
    if sys.platform != "linux" or mmap.PAGESIZE != _PAGE_BYTES:
        return None
    mincore: Any = ctypes.CDLL(None).mincore
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    found: Callable[[int, int, Any], int] = mincore
    return found


def _copy_in_side_stream(stored: torch.Tensor, device: torch.device) -> Transfer:
    """Copy through pinned memory in a side stream."""
    module = torch.get_device_module(device)
    pinned = stored if stored.is_pinned() else stored.contiguous().pin_memory()
    stream = _side_stream(device)
    with module.stream(stream):
        copied = pinned.to(device, non_blocking=True)
        event = stream.record_event()
    return Transfer(copied, event, pinned)


@functools.cache
def _side_stream(device: torch.device) -> Any:
    return torch.get_device_module(device).Stream(device)
