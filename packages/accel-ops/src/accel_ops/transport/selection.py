"""Find the way to the other ranks."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch.distributed as dist

from accel_ops.transport.local import LocalTransport
from accel_ops.transport.protocol import Transport
from accel_ops.transport.torch_distributed import TorchDistributedTransport
from accel_state.runtime import Runtime, current_runtime, has_runtime

#: Kinds of device that have collectives of their own.
_BY_DEVICE = {"xla": "accel_ops.transport.xla:XlaTransport"}

_chosen: ContextVar[Transport | None] = ContextVar("accel_ops_transport", default=None)
_local = LocalTransport()


class _Remembered:
    """The way found last, and what it belongs to; a new group or runtime gets a new one."""

    distributed: TorchDistributedTransport | None = None
    device: Transport | None = None
    runtime_id: int | None = None


def current_transport() -> Transport:
    """Return the way to the other ranks: that in use here, the device's own, the process group, or none."""
    chosen = _chosen.get()
    if chosen is not None:
        return chosen
    if has_runtime() and current_runtime().device.type in _BY_DEVICE:
        return _of_device(current_runtime())
    if not dist.is_available() or not dist.is_initialized():
        return _local
    group = dist.group.WORLD
    assert group is not None
    if _Remembered.distributed is None or not _Remembered.distributed.serves(group):
        _Remembered.distributed = TorchDistributedTransport(group)
    return _Remembered.distributed


def _of_device(runtime: Runtime) -> Transport:
    if runtime.topology.world_size == 1:
        return _local
    if _Remembered.device is None or _Remembered.runtime_id != id(runtime):
        _Remembered.device = _transport_class(_BY_DEVICE[runtime.device.type])()
        _Remembered.runtime_id = id(runtime)
    return _Remembered.device


@cache
def _transport_class(target: str) -> type[Transport]:
    module, _, name = target.partition(":")
    found: type[Transport] = getattr(importlib.import_module(module), name)
    return found


@contextmanager
def use_transport(transport: Transport) -> Iterator[Transport]:
    """Send what this thread sends by ``transport`` while the context is open."""
    token = _chosen.set(transport)
    try:
        yield transport
    finally:
        _chosen.reset(token)
