"""Find the transport of this process."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch.distributed as dist

from accel_ops.transport.process_group import ProcessGroupTransport
from accel_ops.transport.protocol import Transport
from accel_ops.transport.single_process import SingleProcess
from accel_state.environment import snapshot
from accel_state.errors import StateError
from accel_state.process_environments import detect_topology
from accel_state.runtime import current_runtime, has_runtime
from accel_state.topology import Topology

#: Device types whose collectives do not go through a process group, with the module and class that serve them.
_BY_DEVICE = {"xla": ("accel_ops.transport.xla", "XlaTransport")}

_chosen: ContextVar[Transport | None] = ContextVar("accel_ops_transport", default=None)


def current_transport() -> Transport:
    """Return the transport of this process: one chosen with ``use_transport``, the device's own, or the group's.

    Raises:
        StateError: If the run has several processes but no process group is up.
    """
    chosen = _chosen.get()
    if chosen is not None:
        return chosen
    device_type = current_runtime().device.type if has_runtime() else "cpu"
    if device_type in _BY_DEVICE and current_runtime().topology.world_size > 1:
        module, name = _BY_DEVICE[device_type]
        transport: Transport = getattr(importlib.import_module(module), name)()
        return transport
    group = dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
    if group is not None:
        return ProcessGroupTransport(group)
    topology = _topology()
    if topology.world_size > 1:
        raise StateError(
            f"This is process {topology.rank} of {topology.world_size}, but no process group is up, so it "
            "cannot reach the others. Construct `Accelerator()` or `PartialState()`, or call "
            "`torch.distributed.init_process_group()`, before the first collective, and call none "
            "after `end_training()` or `destroy_process_group()`."
        )
    return SingleProcess()


def current_rank() -> int:
    """Return the rank of this process, whether or not the process group is up yet."""
    chosen = _chosen.get()
    if chosen is not None:
        return chosen.rank
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return _topology().rank


def _topology() -> Topology:
    """Return this process's place in the run, from the state or, before it is built, from the environment."""
    return current_runtime().topology if has_runtime() else detect_topology(snapshot())


@contextmanager
def use_transport(transport: Transport) -> Iterator[Transport]:
    """Let operations of this thread use ``transport`` while the context is open."""
    token = _chosen.set(transport)
    try:
        yield transport
    finally:
        _chosen.reset(token)
