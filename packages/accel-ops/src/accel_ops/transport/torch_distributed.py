"""The default process group of torch.distributed."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from accel_ops.frames import FrameTable
from accel_ops.transport.bulletin import Bulletin, StoreBulletin
from accel_state.group_store import store_of

#: Up to this size for all ranks together tensors are sent from rank to rank: a frame in one step instead of the
#: ``world_size - 1`` of gloo's ring, a broadcast without the way through gloo's queue.
_DIRECT_BYTES = 1 << 18
_TAG = 0x6163_6365  # "acce": no message that a script sends by itself is taken for one of these
_CPU = torch.device("cpu")


class TorchDistributedTransport:
    """A process group as the way to the other ranks.

    Tensors on the CPU are framed: their bytes can be read as soon as they are here, so each header is
    checked. On an accelerator the check would make the host wait for the device at every call; there the
    operations trust the shapes, as torch does, and the debug mode is the way to check them.
    """

    packs_bytes = True

    def __init__(self, group: dist.ProcessGroup) -> None:
        # The group must be able to end while this object is still around.
        self._group = weakref.ref(group)
        self.rank = group.rank()
        self.world_size = group.size()
        self.frames = FrameTable(rank=self.rank, world_size=self.world_size)
        self._served = _served_device_types(group)
        self._others = [rank for rank in range(self.world_size) if rank != self.rank]
        self._sends_directly = "cpu:gloo" in dist.get_backend_config(group).split(",")
        self.control_device = self.home(torch.device("cpu"))
        self._bulletin: Bulletin | None = None
        self._store: Store | None = None

    def serves(self, group: object) -> bool:
        """Tell whether this is the way for that very process group."""
        return self._group() is group

    def home(self, device: torch.device) -> torch.device:
        if device.type in self._served:
            return device
        if "cpu" in self._served:
            return torch.device("cpu")
        kind = self._served[0]
        return torch.device(kind, torch.get_device_module(kind).current_device())

    def is_framed(self, device: torch.device) -> bool:
        return device.type == "cpu"

    def share(self, frames: FrameTable) -> None:
        if self._goes_directly(frames.own):
            sent = dict.fromkeys(self._others, frames.own)
            self._swap(sent, {rank: frames.rows[rank] for rank in self._others})
        else:
            frames.table.copy_(self.all_gather(frames.own.to(self.control_device)))

    def _goes_directly(self, flat: torch.Tensor) -> bool:
        num_bytes = flat.nbytes * self.world_size
        return self._sends_directly and num_bytes <= _DIRECT_BYTES and flat.device.type == "cpu"

    def _swap(self, sent: Mapping[int, torch.Tensor], received: Mapping[int, torch.Tensor]) -> None:
        """Send tensors to ranks and receive from ranks.

        gloo does this in the calling thread; a collective goes through a queue and a thread of its own.
        """
        # torch's annotations of it lack `recv` and `send`.
        backend: Any = self._alive_group()._get_backend(_CPU)
        works = [backend.recv([room], rank, _TAG) for rank, room in received.items()]
        works += [backend.send([flat], rank, _TAG) for rank, flat in sent.items()]
        for work in works:
            work.wait()

    def all_gather(self, flat: torch.Tensor) -> torch.Tensor:
        gathered = torch.empty((self.world_size, flat.numel()), dtype=flat.dtype, device=flat.device)
        # `dist.all_gather_single` does the same after checks that took 17 of its 150 µs (torch 2.13, gloo).
        self._alive_group()._allgather_base(gathered.view(-1), flat).wait()
        return gathered

    def all_reduce(self, flat: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(flat)
        return flat

    def broadcast(self, flat: torch.Tensor, *, source: int) -> torch.Tensor:
        if not self._goes_directly(flat):
            dist.broadcast(flat, src=source)
        elif self.rank == source:
            self._swap(dict.fromkeys(self._others, flat), {})
        else:
            self._swap({}, {source: flat})
        return flat

    @property
    def store(self) -> Store:
        if self._store is None:
            self._store = store_of(self._alive_group())
        return self._store

    def _alive_group(self) -> dist.ProcessGroup:
        group = self._group()
        assert group is not None, "this way is used only while its group is the default one"
        return group

    def bulletin(self) -> Bulletin:
        if self._bulletin is None:
            self._bulletin = StoreBulletin(self.store, rank=self.rank, world_size=self.world_size)
        return self._bulletin


def _served_device_types(group: dist.ProcessGroup) -> tuple[str, ...]:
    """Return the device types that the group has a backend for: `cpu:gloo,cuda:nccl` gives cpu and cuda."""
    pairs = [pair.split(":") for pair in dist.get_backend_config(group).split(",")]
    return tuple(pair[0] for pair in pairs)
