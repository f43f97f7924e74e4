"""XLA devices, through torch_xla's own collectives (https://docs.pytorch.org/xla)."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from accel_ops.frames import FrameTable
from accel_ops.transport.bulletin import Bulletin, StoreBulletin
from accel_state.errors import StateError
from accel_state.group_store import store_of
from accel_state.runtime import current_runtime


class XlaTransport:
    """The ranks of a torch_xla run. Tensors of other devices travel on the XLA device.

    Collectives on tensors are traced and not framed; those that need an answer on the host (shapes, objects)
    execute what has been traced so far. Bytes of several dtypes cannot share a buffer, as XLA does not
    reinterpret memory.
    """

    packs_bytes = False

    def __init__(self, model: Any = None) -> None:
        runtime = current_runtime()
        self._model = model or importlib.import_module("torch_xla.core.xla_model")
        self._bulletin: Bulletin | None = None
        self._store: Store | None = None
        self.rank = runtime.topology.rank
        self.world_size = runtime.topology.world_size
        self.frames = FrameTable(rank=self.rank, world_size=self.world_size)
        self.control_device = runtime.device

    def home(self, device: torch.device) -> torch.device:
        return self.control_device

    def is_framed(self, device: torch.device) -> bool:
        return False

    def share(self, frames: FrameTable) -> None:
        frames.table.copy_(self.all_gather(frames.own.to(self.control_device)))

    def all_gather(self, flat: torch.Tensor) -> torch.Tensor:
        gathered: torch.Tensor = self._model.all_gather(flat.unsqueeze(0), dim=0)
        return gathered

    def all_reduce(self, flat: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = self._model.all_reduce("sum", flat)
        return total

    def broadcast(self, flat: torch.Tensor, *, source: int) -> torch.Tensor:
        self._model.collective_broadcast([flat], root_ordinal=source)
        return flat

    @property
    def store(self) -> Store:
        group = dist.group.WORLD if dist.is_initialized() else None
        if group is None:
            raise StateError(
                "The ranks are to compare notes through the store of a process group, and there is none. "
                "Call `torch.distributed.init_process_group('xla', init_method='xla://')` first."
            )
        if self._store is None:
            self._store = store_of(group)
        return self._store

    def bulletin(self) -> Bulletin:
        if self._bulletin is None:
            self._bulletin = StoreBulletin(self.store, rank=self.rank, world_size=self.world_size)
        return self._bulletin
