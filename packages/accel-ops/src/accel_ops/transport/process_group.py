"""The default process group of torch.distributed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from accel_ops.transport.protocol import Reduction

_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
#: Renamed in torch 2.13. Delete the old name when we require that release.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_CPU = torch.device("cpu")
_MOVED_AS_THEY_ARE = frozenset({torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8})

_LOCK = threading.RLock()


class ProcessGroupTransport:
    """The collectives of the default process group.

    Calls with tensors on the CPU are checked. On an accelerator a check would make the host wait for the
    device at every call; there shapes are trusted, as torch does, and debug mode checks them.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.lock = _LOCK
        self._group = group
        self.rank = group.rank()
        self.world_size = group.size()

    def device_for(self, device: torch.device) -> torch.device:
        served = _served_device_types(dist.get_backend_config(self._group))
        if device.type in served:
            return device
        if "cpu" in served:
            return _CPU
        return torch.device(served[0], torch.get_device_module(served[0]).current_device())

    def is_checked(self, device: torch.device) -> bool:
        return device.type == "cpu"

    def all_gather(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        gathered = [tensor.new_empty((self.world_size, len(tensor))) for tensor in tensors]
        _wait_for(
            [
                _all_gather(_movable(rows.view(-1)), _movable(tensor), async_op=True)
                for rows, tensor in zip(gathered, tensors, strict=True)
            ]
        )
        return gathered

    def all_reduce(self, tensors: Sequence[torch.Tensor], reduction: Reduction) -> list[torch.Tensor]:
        _wait_for([dist.all_reduce(tensor, _OPS[reduction], async_op=True) for tensor in tensors])
        return list(tensors)

    def broadcast(self, tensors: Sequence[torch.Tensor], *, source: int) -> list[torch.Tensor]:
        _wait_for([dist.broadcast(_movable(tensor), source, async_op=True) for tensor in tensors])
        return list(tensors)

    @property
    def store(self) -> Store:
        store: Store = self._group.get_group_store()
        return store


@lru_cache(maxsize=8)
def _served_device_types(config: str) -> tuple[str, ...]:
    """Return the device types that a group can gather, reduce and broadcast on: `cpu:gloo,cuda:nccl` both.

    gloo registers itself for accelerators too, but gathers on the CPU only.
    """
    pairs = [pair.split(":") for pair in config.split(",")]
    return tuple(kind for kind, backend in pairs if kind == "cpu" or backend != "gloo")


def _movable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose dtype every backend can move: itself, or its bytes."""
    return tensor if tensor.dtype in _MOVED_AS_THEY_ARE else tensor.view(torch.uint8)


def _wait_for(works: Sequence[dist.Work | None]) -> None:
    for work in works:
        if work is not None:
            work.wait()
