"""The default process group of torch.distributed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.distributed as dist
from torch.distributed import Store

from accel_ops.transport.protocol import Reduction

_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
_CPU = torch.device("cpu")


class ProcessGroupTransport:
    """The collectives of a process group.

    Calls with tensors on the CPU are checked. On an accelerator a check would make the host wait for the
    device at every call; there shapes are trusted, as torch does, and debug mode checks them.
    """

    lock: ClassVar[threading.RLock] = threading.RLock()

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.rank = group.rank()
        self.world_size = group.size()

    def device_for(self, device: torch.device) -> torch.device:
        served = self._served_device_types()
        if device.type in served:
            return device
        if "cpu" in served:
            return _CPU
        return torch.device(served[0], torch.get_device_module(served[0]).current_device())

    def _served_device_types(self) -> list[str]:
        """Return the device types that the group can gather, reduce and broadcast on: `cpu:gloo,cuda:nccl` both.

        gloo registers itself for accelerators too, but gathers on the CPU only.
        """
        pairs = [pair.split(":") for pair in dist.get_backend_config(self._group).split(",")]
        return [kind for kind, backend in pairs if kind == "cpu" or backend != "gloo"]

    def is_checked(self, device: torch.device) -> bool:
        return device.type == "cpu"

    # Not every backend knows every dtype, but all of them can move bytes.

    def all_gather(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        gathered = [
            torch.empty((self.world_size, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
            for tensor in tensors
        ]
        works = [
            dist.all_gather_single(
                rows.view(-1).view(torch.uint8), tensor.view(torch.uint8), group=self._group, async_op=True
            )
            for rows, tensor in zip(gathered, tensors, strict=True)
        ]
        _wait_for(works)
        return gathered

    def all_reduce(self, tensors: Sequence[torch.Tensor], reduction: Reduction) -> list[torch.Tensor]:
        _wait_for(
            [
                dist.all_reduce(tensor, _OPS[reduction], group=self._group, async_op=True)
                for tensor in tensors
            ]
        )
        return list(tensors)

    def broadcast(self, tensors: Sequence[torch.Tensor], *, source: int) -> list[torch.Tensor]:
        _wait_for(
            [
                dist.broadcast(tensor.view(torch.uint8), source, group=self._group, async_op=True)
                for tensor in tensors
            ]
        )
        return list(tensors)

    @property
    def store(self) -> Store:
        return self._group.get_group_store()


def _wait_for(works: Sequence[dist.Work | None]) -> None:
    for work in works:
        if work is not None:
            work.wait()
