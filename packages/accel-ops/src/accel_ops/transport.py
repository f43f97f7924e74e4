"""How flat tensors reach the other ranks: the process group, torch_xla, or nothing in a single process."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from accel_state.environment import snapshot
from accel_state.errors import StateError
from accel_state.launched_by import detect_topology
from accel_state.runtime import current_runtime, has_runtime
from accel_state.topology import Topology

Reduction = Literal["sum", "max", "min"]

_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
#: Renamed in torch 2.13. Delete the old name when we require that release.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_CPU = torch.device("cpu")
_SENT_UNCHANGED = frozenset({torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8})

_chosen: ContextVar[Transport | None] = ContextVar("accel_ops_transport", default=None)


class Transport:
    """Three collectives on flat tensors. This class is a single process; its subclasses connect several.

    All ranks must make the same calls in the same order; each call blocks until all have. Tensors are
    one-dimensional, contiguous and on a device that ``device_for`` returned, with the same length and dtype on
    every rank. The tensors of one call are sent at once.
    """

    rank = 0
    world_size = 1
    #: Held from the check of an operation to its result: if operations of two threads interleaved, ranks could pair
    #: them differently. One for all transports of this process, since each operation creates a transport.
    lock = threading.RLock()

    def device_for(self, device: torch.device) -> torch.device:
        """Return the device that tensors of ``device`` are sent from: the same if it is supported."""
        return device

    def is_checked(self, device: torch.device) -> bool:
        """Whether the ranks compare their calls before tensors on this device are sent."""
        return False

    def all_gather(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return for each tensor, ``(n,)``, the tensors of all ranks: ``(world_size, n)``, new, on its device."""
        raise NotImplementedError

    def all_reduce(self, tensors: Sequence[torch.Tensor], reduction: Reduction) -> list[torch.Tensor]:
        """Return the reduced tensors, of the same shapes and devices; the inputs may be overwritten."""
        raise NotImplementedError

    def broadcast(self, tensors: Sequence[torch.Tensor], *, source: int) -> list[torch.Tensor]:
        """Return the tensors of rank ``source``, of the same shapes and devices; inputs may be overwritten."""
        raise NotImplementedError

    def begin_broadcast(self, tensor: torch.Tensor, *, source: int) -> Callable[[], torch.Tensor]:
        """Start a broadcast, and return a function that waits for the tensor of rank ``source``.

        Shape and device are the same as of ``tensor``. Other operations may start before that function is called;
        all ranks must start them in the same order.
        """
        (sent,) = self.broadcast([tensor], source=source)
        return lambda: sent

    @property
    def store(self) -> Store:
        """The key-value store that all ranks share."""
        raise NotImplementedError


class ProcessGroupTransport(Transport):
    """The collectives of the default process group.

    Calls with tensors on the CPU are checked. On an accelerator a check would make the host wait for the
    device at every call; there shapes are trusted, as in torch, and debug mode checks them.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.rank = group.rank()
        self.world_size = group.size()

    def device_for(self, device: torch.device) -> torch.device:
        supported = _supported_device_types(dist.get_backend_config(self._group))
        if device.type in supported:
            return device
        if "cpu" in supported:
            return _CPU
        return torch.device(supported[0], torch.get_device_module(supported[0]).current_device())

    def is_checked(self, device: torch.device) -> bool:
        return device.type == "cpu"

    def all_gather(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        gathered = [tensor.new_empty((self.world_size, len(tensor))) for tensor in tensors]
        _wait_for(
            [
                _all_gather(_sendable(rows.view(-1)), _sendable(tensor), async_op=True)
                for rows, tensor in zip(gathered, tensors, strict=True)
            ]
        )
        return gathered

    def all_reduce(self, tensors: Sequence[torch.Tensor], reduction: Reduction) -> list[torch.Tensor]:
        # Gloo's maximum keeps a NaN or loses it, by the order of the ranks.
        floats = [tensor for tensor in tensors if reduction != "sum" and tensor.is_floating_point()]
        nans = [tensor.isnan().to(torch.uint8) for tensor in floats]
        works = [dist.all_reduce(tensor, _OPS[reduction], async_op=True) for tensor in tensors]
        _wait_for([*works, *[dist.all_reduce(nan, _OPS["max"], async_op=True) for nan in nans]])
        for tensor, nan in zip(floats, nans, strict=True):
            tensor.masked_fill_(nan.bool(), torch.nan)
        return list(tensors)

    def broadcast(self, tensors: Sequence[torch.Tensor], *, source: int) -> list[torch.Tensor]:
        _wait_for([dist.broadcast(_sendable(tensor), source, async_op=True) for tensor in tensors])
        return list(tensors)

    def begin_broadcast(self, tensor: torch.Tensor, *, source: int) -> Callable[[], torch.Tensor]:
        work = dist.broadcast(_sendable(tensor), source, async_op=True)

        def wait() -> torch.Tensor:
            _wait_for([work])
            return tensor

        return wait

    @property
    def store(self) -> Store:
        store: Store = self._group.get_group_store()
        return store


class XlaTransport(Transport):
    """The ranks of a torch_xla run (https://docs.pytorch.org/xla). All tensors are sent from the XLA device.

    Collectives on tensors are traced and not checked; exchanges of shapes and objects need a result on the host and
    execute the pending graph.
    """

    def __init__(self, model: Any = None) -> None:
        runtime = current_runtime()
        self._model = model or importlib.import_module("torch_xla.core.xla_model")
        self._device = runtime.device
        self.rank = runtime.topology.rank
        self.world_size = runtime.topology.world_size

    def device_for(self, device: torch.device) -> torch.device:
        return self._device

    def all_gather(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [self._model.all_gather(tensor.unsqueeze(0), dim=0) for tensor in tensors]

    def all_reduce(self, tensors: Sequence[torch.Tensor], reduction: Reduction) -> list[torch.Tensor]:
        return [self._model.all_reduce(reduction, tensor) for tensor in tensors]

    def broadcast(self, tensors: Sequence[torch.Tensor], *, source: int) -> list[torch.Tensor]:
        if tensors:
            self._model.collective_broadcast(list(tensors), root_ordinal=source)
        return list(tensors)

    @property
    def store(self) -> Store:
        group = _default_group()
        if group is None:
            raise StateError(
                "This needs the store of a process group, and there is none. "
                "Call `torch.distributed.init_process_group('xla', init_method='xla://')` first."
            )
        store: Store = group.get_group_store()
        return store


def current_transport() -> Transport:
    """Return the transport of this process: one chosen with ``use_transport``, torch_xla's, or the group's.

    Raises:
        StateError: If the run has several processes but no process group is up.
    """
    chosen = _chosen.get()
    if chosen is not None:
        return chosen
    if has_runtime() and current_runtime().device.type == "xla" and current_runtime().topology.world_size > 1:
        return XlaTransport()
    group = _default_group()
    if group is not None:
        return ProcessGroupTransport(group)
    topology = _topology()
    if topology.world_size > 1:
        raise StateError(
            f"This is process {topology.rank} of {topology.world_size}, but no process group is up, so it "
            "cannot reach the other ranks. Construct `Accelerator()` or `PartialState()`, or call "
            "`torch.distributed.init_process_group()`, before the first collective, and call none "
            "after `end_training()` or `destroy_process_group()`."
        )
    return Transport()


def current_rank() -> int:
    """Return the rank of this process, also before the process group is up."""
    chosen = _chosen.get()
    if chosen is not None:
        return chosen.rank
    group = _default_group()
    return _topology().rank if group is None else group.rank()


@contextmanager
def use_transport(transport: Transport) -> Iterator[Transport]:
    """Use ``transport`` for operations of this thread while the context is open."""
    token = _chosen.set(transport)
    try:
        yield transport
    finally:
        _chosen.reset(token)


def _default_group() -> dist.ProcessGroup | None:
    return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None


def _topology() -> Topology:
    """Return the topology of the state or, before it is built, of the environment."""
    return current_runtime().topology if has_runtime() else detect_topology(snapshot())


@lru_cache(maxsize=8)
def _supported_device_types(config: str) -> tuple[str, ...]:
    """Return the device types that a group supports for all collectives: both for `cpu:gloo,cuda:nccl`.

    gloo is also registered for accelerators, but its all-gather supports the CPU only.
    """
    pairs = [pair.split(":") for pair in config.split(",")]
    return tuple(kind for kind, backend in pairs if kind == "cpu" or backend != "gloo")


def _sendable(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or its bytes if not every backend can send its dtype."""
    return tensor if tensor.dtype in _SENT_UNCHANGED else tensor.view(torch.uint8)


def _wait_for(works: Sequence[dist.Work | None]) -> None:
    for work in works:
        if work is not None:
            work.wait()
