"""XLA devices, through torch_xla's own collectives (https://docs.pytorch.org/xla)."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from accel_ops.transport.protocol import Reduction
from accel_state.errors import StateError
from accel_state.runtime import current_runtime

_LOCK = threading.RLock()


class XlaTransport:
    """The ranks of a torch_xla run. Tensors of other devices are sent from the XLA device.

    Collectives on tensors are traced and not checked; those that need an answer on the host (shapes,
    objects) execute what has been traced so far.
    """

    def __init__(self, model: Any = None) -> None:
        runtime = current_runtime()
        self.lock = _LOCK
        self._model = model or importlib.import_module("torch_xla.core.xla_model")
        self._device = runtime.device
        self.rank = runtime.topology.rank
        self.world_size = runtime.topology.world_size

    def device_for(self, device: torch.device) -> torch.device:
        return self._device

    def is_checked(self, device: torch.device) -> bool:
        return False

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
        group = dist.group.WORLD if dist.is_initialized() else None
        if group is None:
            raise StateError(
                "This needs the store of a process group, and there is none. "
                "Call `torch.distributed.init_process_group('xla', init_method='xla://')` first."
            )
        store: Store = group.get_group_store()
        return store
