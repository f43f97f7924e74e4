"""TPUs and other PJRT devices, driven by `torch_xla` (https://docs.pytorch.org/xla)."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import torch

from accel_state.devices.backend import DeviceBackend, import_error
from accel_state.topology import Topology


def _model() -> Any:
    return importlib.import_module("torch_xla.core.xla_model")


def _runtime() -> Any:
    return importlib.import_module("torch_xla.runtime")


class XlaBackend(DeviceBackend):
    """One device per process; the runtime assigns the ranks, and its rendezvous connects them."""

    def unavailable_reason(self, *, check_device: bool = False) -> str | None:
        reason = self.vendor.not_installed_reason() or import_error("torch_xla")
        if reason is None and _runtime().device_type() is None:
            return "`torch_xla` finds no device. Set `PJRT_DEVICE`, such as to `TPU`."
        return reason

    def count(self) -> int:
        return int(_runtime().local_device_count())

    def device(self, local_rank: int) -> torch.device:
        device: torch.device = importlib.import_module("torch_xla").device()
        return device

    def place(self, topology: Topology) -> torch.device:
        return self.device(topology.local_rank)

    def set_device(self, device: torch.device) -> None:
        """Nothing to set: the process has one device."""

    def empty_cache(self) -> None:
        """Nothing to release: the runtime keeps no cache."""

    def get_rng_state(self) -> torch.Tensor:
        """Return XLA's random state, one 64-bit number per device, as a 0-dim int64 CPU tensor of the same bits."""
        bits = int(_model().get_rng_state())
        # While a step is traced, the next one would resume from the state before it; set it to resume from here.
        _model().set_rng_state(bits)
        return torch.tensor(bits - 2**64 if bits >= 2**63 else bits, dtype=torch.int64)

    def set_rng_state(self, state: torch.Tensor) -> None:
        _model().set_rng_state(int(state.item()) % 2**64)

    def seed_all(self, seed: int) -> None:
        _model().set_rng_state(seed)

    def _no_64_bit_reason(self) -> str | None:
        return None

    def _computes_in(self, dtype: torch.dtype) -> bool:
        return True

    def refine_topology(self, topology: Topology) -> Topology:
        """Return the ranks of the runtime, which may have started the processes (`torch_xla.launch`)."""
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
        # The import registers the backend with torch.
        importlib.import_module("torch_xla.distributed.xla_backend")
        return {"init_method": "xla://"}

    def barrier(self, device: torch.device) -> None:
        _model().rendezvous("accel.wait_for_everyone")

    def free_and_total_bytes(self, device: torch.device | None = None) -> tuple[int, int]:
        info = _model().get_memory_info(device)
        return int(info["bytes_limit"]) - int(info["bytes_used"]), int(info["bytes_limit"])
