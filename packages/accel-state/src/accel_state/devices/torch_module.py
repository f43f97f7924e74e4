"""Base of the vendors whose devices are driven through a module ``torch.<name>`` like ``torch.cuda``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from accel_state.devices.protocol import DeviceMemory, DeviceRng
from accel_state.enums import DistributedType
from accel_state.errors import ConfigError
from accel_state.topology import Topology


class ModuleRng:
    """The random state of the vendor's current device."""

    def __init__(self, backend: TorchModuleBackend) -> None:
        self._backend = backend

    def get_state(self) -> torch.Tensor:
        state: torch.Tensor = self._backend.rng_module.get_rng_state()
        return state

    def set_state(self, state: torch.Tensor) -> None:
        self._backend.rng_module.set_rng_state(state)

    def seed(self, seed: int) -> None:
        self._backend.rng_module.manual_seed_all(seed)


class ModuleMemory:
    """The vendor allocator's counters."""

    def __init__(self, backend: TorchModuleBackend) -> None:
        self._backend = backend

    def allocated_bytes(self, device: torch.device | None = None) -> int:
        return int(self._backend.module.memory_allocated(device))

    def peak_allocated_bytes(self, device: torch.device | None = None) -> int:
        return int(self._backend.module.max_memory_allocated(device))

    def reset_peak(self, device: torch.device | None = None) -> None:
        self._backend.module.reset_peak_memory_stats(device)

    def free_and_total_bytes(self, device: torch.device | None = None) -> tuple[int, int]:
        free, total = self._backend.module.mem_get_info(device)
        return int(free), int(total)


class TorchModuleBackend:
    """One process per device, found as ``torch.<name>`` once the vendor's ``plugin`` is imported."""

    name: ClassVar[str]
    collective_backend: ClassVar[str | None]
    distributed_type: ClassVar[DistributedType]
    plugin: ClassVar[str | None] = None
    """The package that adds ``torch.<name>``; None when torch itself has it."""

    def __init__(self) -> None:
        self.rng: DeviceRng = ModuleRng(self)
        self.memory: DeviceMemory = ModuleMemory(self)

    @property
    def module(self) -> Any:
        """The vendor's ``torch.<name>``, its plugin imported."""
        if self.plugin is not None:
            importlib.import_module(self.plugin)
        return getattr(torch, self.name)

    @property
    def rng_module(self) -> Any:
        """Where the vendor keeps the functions of its random state."""
        return self.module

    def is_available(self) -> bool:
        if self.plugin is not None and not is_usable(self.plugin):
            return False
        return bool(self.module.is_available())

    def count(self) -> int:
        return int(self.module.device_count())

    def device(self, local_rank: int) -> torch.device:
        return torch.device(self.name, local_rank)

    def place(self, topology: Topology) -> torch.device:
        num_devices = self.count()
        if topology.local_world_size <= num_devices:
            return self.device(topology.local_rank)
        if num_devices == 1:
            # `srun --gpus-per-task=1`, MPI wrappers, Ray and Kubernetes show each process its own device only.
            return self.device(0)
        raise ConfigError(
            f"{topology.local_world_size} processes run on this machine, but each of them sees {num_devices} "
            f"`{self.name}` devices. Start at most {num_devices}, show each process one device of its own, or pass "
            "`cpu=True` (`--cpu`) to run on the CPU."
        )

    def set_device(self, device: torch.device) -> None:
        self.module.set_device(device)

    def refine_topology(self, topology: Topology) -> Topology:
        return topology

    def process_group_options(self) -> dict[str, Any]:
        return {}

    def barrier(self, device: torch.device) -> None:
        dist.barrier()

    def synchronize(self) -> None:
        self.module.synchronize()

    def empty_cache(self) -> None:
        self.module.empty_cache()

    def supports(self, dtype: torch.dtype) -> bool:
        if dtype == torch.bfloat16 and hasattr(self.module, "is_bf16_supported"):
            return bool(self.module.is_bf16_supported())
        return True


def is_usable(plugin: str) -> bool:
    """Tell whether a vendor's package is installed and can be imported; warn if it is only the first."""
    top_level = plugin.partition(".")[0]
    if top_level not in sys.modules and importlib.util.find_spec(top_level) is None:
        return False
    try:
        importlib.import_module(plugin)
    except (ImportError, OSError) as error:
        # Typically a driver's library that is missing on this machine.
        warnings.warn(
            f"`{plugin}` is installed but cannot be imported, so its devices are not used: {error}",
            stacklevel=2,
        )
        return False
    return True
