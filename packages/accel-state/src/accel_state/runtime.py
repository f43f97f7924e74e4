"""The one object per process behind `PartialState` and `AcceleratorState`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from accel_state.devices.protocol import DeviceBackend
from accel_state.enums import DistributedType
from accel_state.errors import StateNotBuiltError
from accel_state.gradient_state import GradientState
from accel_state.mesh_layout import MeshLayout
from accel_state.topology import Topology


@dataclass(slots=True)
class Runtime:
    """What this process is and runs on. Built once, by the first `PartialState` or `Accelerator`.

    ``backend`` is the process group's, None in a single process. ``distributed_type`` knows devices only; an
    engine's is that of the `AcceleratorState`.
    """

    topology: Topology
    device: torch.device
    device_backend: DeviceBackend
    backend: str | None
    distributed_type: DistributedType
    is_cpu_forced: bool
    debug: bool
    fork_launched: bool
    group_request: Mapping[str, Any] = field(default_factory=dict)

    @property
    def layout(self) -> MeshLayout:
        """How the ranks are arranged: as the `ParallelismConfig` says, else every rank has the whole model."""
        layout: MeshLayout | None = _Current.training.get("layout")
        # A script may have assigned another `num_processes` since the layout was made.
        if layout is not None and layout.world_size == self.topology.world_size:
            return layout
        return MeshLayout.of_replicas(self.topology.world_size)

    def set_rank(self, field: str, value: int) -> None:
        """Set one field of the topology, as scripts do one by one: it need not fit the others yet."""
        self.topology = copy(self.topology)
        object.__setattr__(self.topology, field, value)

    def wait_for_everyone(self) -> None:
        """Block until every rank has called this; return at once in a single process."""
        if self.topology.world_size > 1:
            self.device_backend.barrier(self.device)

    def await_arrival(self, operation: str) -> None:
        """In debug mode, return once all ranks have come to ``operation``; otherwise at once."""
        if self.debug and self.topology.world_size > 1:
            from accel_state.arrival import await_arrival

            group, topology = torch.distributed.group.WORLD, self.topology
            if group is not None:  # a run on XLA may have none
                await_arrival(group.get_group_store(), topology.rank, topology.world_size, operation)


class _Current:
    runtime: Runtime | None = None
    training: ClassVar[dict[str, Any]] = {}
    lock = threading.RLock()


def has_runtime() -> bool:
    """Tell whether the runtime has been built."""
    return _Current.runtime is not None


def current_runtime() -> Runtime:
    """Return the runtime of this process.

    Raises:
        StateNotBuiltError: If neither a `PartialState` nor an `Accelerator` has been built yet.
    """
    if _Current.runtime is None:
        raise StateNotBuiltError(
            "`PartialState` object has no attribute values: the state of this process has not been built. This "
            "happens if `PartialState._reset_state()` was called. Construct `Accelerator()` or `PartialState()` first."
        )
    return _Current.runtime


def training_attributes() -> dict[str, Any]:
    """Return the attributes of all `AcceleratorState` instances, empty while there is none; only they write them."""
    return _Current.training


def runtime_lock() -> threading.RLock:
    """Return the lock to hold while the runtime is looked up and built."""
    return _Current.lock


def install_runtime(runtime: Runtime) -> None:
    """Make ``runtime`` the one of this process."""
    _Current.runtime = runtime


def reset_runtime(*, keep_process_group: bool = False) -> None:
    """Forget everything about this process, so that the next `PartialState` starts anew.

    Args:
        keep_process_group: Leave the process group standing, for the next `PartialState` to take over.
            Otherwise the group is destroyed if accel set it up; one that the user set up is never touched.
    """
    from accel_state.group_exit import end_owned_group

    _Current.runtime = None
    _Current.training.clear()
    GradientState._reset_state()
    if not keep_process_group:
        end_owned_group()
