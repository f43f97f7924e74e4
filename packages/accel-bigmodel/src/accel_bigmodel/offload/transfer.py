"""Copying weights to the device that uses them."""

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
    """A tensor that is, or soon will be, on its device.

    Args:
        tensor: The values there.
        event: Set once the copy is done, on devices that copy in a stream of their own.
        source: Kept until then: the copy reads from it.
    """

    tensor: torch.Tensor
    event: Any = None
    source: torch.Tensor | None = None

    def take(self) -> torch.Tensor:
        """Return the tensor, for use in the current stream."""
        if self.event is not None:
            stream = torch.get_device_module(self.tensor.device).current_stream(self.tensor.device)
            stream.wait_event(self.event)
            self.tensor.record_stream(stream)
            self.event = self.source = None
        return self.tensor


def start_transfer(stored: torch.Tensor, device: torch.device, *, ahead: bool = False) -> Transfer:
    """Start to copy ``stored`` to ``device``; values that are used where they are stored are not copied.

    Args:
        stored: Where the values are kept: in memory, or mapped from a file.
        device: Where they are used.
        ahead: They are needed later: read a mapped file now, copy in a side stream.
    """
    if device.type == "cpu" and stored.device.type == "cpu":
        if ahead:
            _touch(stored)
        return Transfer(stored)
    if ahead and device.type == "cuda" and stored.device.type == "cpu":
        return _copy_beside(stored, device)
    return Transfer(stored.to(device))


def _touch(tensor: torch.Tensor) -> None:
    """Read all pages of a mapped tensor into memory."""
    if tensor.is_contiguous() and tensor.nbytes >= _PAGE_BYTES and not is_in_memory(tensor):
        raw = tensor.detach().reshape(-1).view(torch.uint8)
        raw[::_PAGE_BYTES].max()


def is_in_memory(tensor: torch.Tensor) -> bool:
    """Whether all of a tensor is in memory, and not only mapped from a file; false where the system cannot tell.

    Touching pages that are in memory would cost the forward time and cache.
    """
    if tensor.device.type != "cpu":
        return True
    ask = _residency()
    if ask is None:
        return False
    begin = tensor.data_ptr() // _PAGE_BYTES * _PAGE_BYTES
    num_bytes = tensor.data_ptr() + tensor.nbytes - begin
    found = ctypes.create_string_buffer(-(-num_bytes // _PAGE_BYTES))
    return ask(begin, num_bytes, found) == 0 and 0 not in found.raw


@functools.cache
def _residency() -> Callable[[int, int, Any], int] | None:
    if sys.platform != "linux" or mmap.PAGESIZE != _PAGE_BYTES:
        return None
    ask: Any = ctypes.CDLL(None).mincore
    ask.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    found: Callable[[int, int, Any], int] = ask
    return found


def _copy_beside(stored: torch.Tensor, device: torch.device) -> Transfer:
    """Copy through pinned memory in a side stream."""
    module = torch.get_device_module(device)
    pinned = stored if stored.is_pinned() else stored.contiguous().pin_memory()
    stream = _side_stream(device)
    with module.stream(stream):
        copied = pinned.to(device, non_blocking=True)
        event = stream.record_event()
    return Transfer(copied, event, pinned)


_streams: dict[torch.device, Any] = {}


def _side_stream(device: torch.device) -> Any:
    if device not in _streams:
        _streams[device] = torch.get_device_module(device).Stream(device)
    return _streams[device]
