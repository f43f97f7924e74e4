"""TPUs and whatever else speaks PJRT, driven by `torch_xla` (https://docs.pytorch.org/xla)."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any, ClassVar

import torch

from accel_state.devices.torch_module import is_usable
from accel_state.enums import DistributedType
from accel_state.topology import Topology


def _model() -> Any:
    return importlib.import_module("torch_xla.core.xla_model")


def _runtime() -> Any:
    return importlib.import_module("torch_xla.runtime")


class XlaRng:
    """XLA's random state, one number per device, here as a tensor."""

    def get_state(self) -> torch.Tensor:
        return torch.tensor(_model().get_rng_state(), dtype=torch.int64)

    def set_state(self, state: torch.Tensor) -> None:
        _model().set_rng_state(int(state.item()))

    def seed(self, seed: int) -> None:
        _model().set_rng_state(seed)


class XlaMemory:
    """What PJRT tells of a device's memory."""

    def allocated_bytes(self, device: torch.device | None = None) -> int:
        return int(self._info(device)["bytes_used"])

    def peak_allocated_bytes(self, device: torch.device | None = None) -> int:
        info = self._info(device)
        return int(info.get("peak_bytes_used", info["bytes_used"]))

    def reset_peak(self, device: torch.device | None = None) -> None:
        """Nothing to reset: PJRT's peak is that of the whole process."""

    def free_and_total_bytes(self, device: torch.device | None = None) -> tuple[int, int]:
        info = self._info(device)
        return int(info["bytes_limit"]) - int(info["bytes_used"]), int(info["bytes_limit"])

    def _info(self, device: torch.device | None) -> dict[str, int]:
        info: dict[str, int] = _model().get_memory_info(device)
        return info


class XlaBackend:
    """One device per process; the runtime itself knows who is who, and the ranks meet through it."""

    name: ClassVar[str] = "xla"
    collective_backend: ClassVar[str | None] = "xla"
    distributed_type: ClassVar[DistributedType] = DistributedType.XLA

    def __init__(self) -> None:
        self.rng = XlaRng()
        self.memory = XlaMemory()

    def is_available(self) -> bool:
        return is_usable("torch_xla") and _runtime().device_type() is not None

    def count(self) -> int:
        return int(_runtime().local_device_count())

    def device(self, local_rank: int) -> torch.device:
        device: torch.device = importlib.import_module("torch_xla").device()
        return device

    def place(self, topology: Topology) -> torch.device:
        return self.device(topology.local_rank)

    def set_device(self, device: torch.device) -> None:
        """Nothing to set: the runtime gave this process its device."""

    def refine_topology(self, topology: Topology) -> Topology:
        """Return what the runtime tells: it may have started the processes itself (`torch_xla.launch`)."""
        runtime = _runtime()
        world_size, local_world_size = int(runtime.world_size()), int(runtime.local_process_count())
        if world_size <= 1:
            return topology
        rank = int(runtime.global_ordinal())
        return replace(
            topology,
            rank=rank,
            world_size=world_size,
            local_rank=int(runtime.local_ordinal()),
            local_world_size=local_world_size,
            node_rank=rank // local_world_size,
            num_nodes=-(-world_size // local_world_size),
            source="xla",
        )

    def process_group_options(self) -> dict[str, Any]:
        # Importing it is what makes the backend known to torch.
        importlib.import_module("torch_xla.distributed.xla_backend")
        return {"init_method": "xla://"}

    def barrier(self, device: torch.device) -> None:
        _model().rendezvous("accel.wait_for_everyone")

    def synchronize(self) -> None:
        _model().wait_device_ops()

    def empty_cache(self) -> None:
        """Nothing to hand back: PJRT owns the device's memory."""

    def supports(self, dtype: torch.dtype) -> bool:
        return True
