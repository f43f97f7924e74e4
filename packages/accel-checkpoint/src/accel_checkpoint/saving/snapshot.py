"""Snapshots of tensors in host memory, which the next save reuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from accel_checkpoint.formats.deferred import DeferredTensor
from accel_ops.shared_tensors import id_tensor_view

Path = tuple[Any, ...]
Copy = Callable[[Path, torch.Tensor], torch.Tensor]


def map_tensors(
    content: Any, copy: Copy, *, path: Path = (), seen: dict[object, torch.Tensor] | None = None
) -> Any:
    """Return ``content`` with its containers rebuilt and each tensor replaced by ``copy(path, tensor)``.

    A tensor that occurs twice is copied once. Immutable leaves such as numbers and strings are kept as they are.
    """
    seen = {} if seen is None else seen
    if isinstance(content, DeferredTensor):
        if id(content) not in seen:
            seen[id(content)] = own_copy(content.fetch())
        return seen[id(content)]
    if isinstance(content, torch.Tensor):
        if not is_plain(content):
            return copy(path, content)
        view = id_tensor_view(content)
        if view not in seen:
            seen[view] = copy(path, content)
        return seen[view]
    if isinstance(content, Mapping) and hasattr(content, "items"):
        members = [
            (name, map_tensors(value, copy, path=(*path, name), seen=seen)) for name, value in content.items()
        ]
        return dict(members) if type(content) is dict else _like(content, members)
    if isinstance(content, (list, tuple)) and not isinstance(content, torch.Size):
        values = [map_tensors(value, copy, path=(*path, i), seen=seen) for i, value in enumerate(content)]
        return values if isinstance(content, list) else tuple(values)
    if isinstance(content, (set, bytearray)):
        return type(content)(content)
    return content.copy() if hasattr(content, "__array__") and hasattr(content, "copy") else content


def own_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the CPU that nobody else has, with a storage of its own size."""
    on_cpu = tensor.detach().cpu()
    return on_cpu.clone(memory_format=torch.contiguous_format)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is an ordinary dense tensor: no subclass, not sparse, not quantized."""
    kind = type(tensor)
    return (
        kind in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and not tensor.is_quantized
    )


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in new memory. For a wrapper subclass, such as a quantized tensor, copy the inner tensors."""
    return _with_inner(tensor, torch.clone)


def _with_inner(tensor: torch.Tensor, copy: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return ``copy(tensor)``; for a wrapper subclass, rebuild it around the results for its inner tensors."""
    wrapper: Any = tensor
    if not is_traceable_wrapper_subclass(wrapper):
        return copy(tensor)
    # Not every wrapper supports `clone` (torchao 0.18: the states of its 8-bit optimizers).
    names, context = wrapper.__tensor_flatten__()
    parts = {name: _with_inner(getattr(wrapper, name), copy) for name in names}
    rebuilt: torch.Tensor = type(wrapper).__tensor_unflatten__(
        parts, context, wrapper.size(), wrapper.stride()
    )
    return rebuilt


def compact_on_cpu(path: Path, tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor with a storage of its own size, since `torch.save` writes whole storages."""
    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        return _with_inner(tensor, torch.Tensor.cpu)
    if not is_plain(tensor):
        return tensor
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


class HostBuffers:
    """Host memory for snapshots of tensors, reused from one save to the next.

    The copies are valid until the next `begin`. For an accelerator the memory is pinned and the copies are
    asynchronous: later work on the device waits for them after `join_streams`, and the host waits in `wait`.
    """

    def __init__(self) -> None:
        self._buffers: dict[Path, torch.Tensor] = {}
        self._used: set[Path] = set()
        self._streams: dict[torch.device, Any] = {}

    def begin(self) -> None:
        """Start a new snapshot in the memory of the last one."""
        self._buffers = {path: self._buffers[path] for path in self._used if path in self._buffers}
        self._used = set()
        self._streams = {}

    def copy(self, path: Path, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of ``tensor`` in host memory."""
        tensor = tensor.detach()
        if not is_plain(tensor):
            return copy_of(tensor)
        self._used.add(path)
        buffer = self._buffers.get(path)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            can_be_pinned = tensor.device.type != "cpu" and torch.accelerator.is_available()
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=can_be_pinned)
            self._buffers[path] = buffer
        if tensor.device.type == "cpu":
            return buffer.copy_(tensor)
        return self._copy_async(buffer, tensor)

    def join_streams(self) -> None:
        """Make later work on the devices wait for the copies."""
        for device, stream in self._streams.items():
            torch.get_device_module(device).current_stream(device).wait_stream(stream)

    def wait(self) -> None:
        """Block until all copies are complete."""
        for stream in self._streams.values():
            stream.synchronize()

    @property
    def num_bytes(self) -> int:
        """Size of all buffers."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def _copy_async(self, buffer: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        device = tensor.device
        module = torch.get_device_module(device)
        if not hasattr(module, "Stream"):
            return buffer.copy_(tensor)
        if device not in self._streams:
            self._streams[device] = module.Stream(device)
            self._streams[device].wait_stream(module.current_stream(device))
        with module.stream(self._streams[device]):
            return buffer.copy_(tensor, non_blocking=True)


def _like(content: Mapping[Any, Any], members: list[tuple[Any, Any]]) -> Any:
    rebuilt = type(content)()
    for name, value in members:
        rebuilt[name] = value  # type: ignore[index]
    return rebuilt
