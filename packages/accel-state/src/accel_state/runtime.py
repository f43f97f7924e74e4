"""The one object per process behind `PartialState`, `AcceleratorState` and `GradientState`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from accel_state.devices.protocol import DeviceBackend
from accel_state.enums import DistributedType
from accel_state.errors import StateError
from accel_state.gradient_data import GradientData
from accel_state.mesh_layout import MeshLayout
from accel_state.topology import Topology

if TYPE_CHECKING:
    from accel_state.accelerator_data import AcceleratorData


@dataclass(slots=True)
class Runtime:
    """What this process is and runs on. Built once, by the first `PartialState` or `Accelerator`.

    ``backend`` is the process group's, None in a single process. ``distributed_type`` knows devices only; an
    engine's word stands in ``accelerator.distributed_type``.
    """

    topology: Topology
    device: torch.device
    device_backend: DeviceBackend
    backend: str | None
    distributed_type: DistributedType
    is_cpu_forced: bool
    debug: bool
    fork_launched: bool
    gradient: GradientData
    group_request: Mapping[str, Any] = field(default_factory=dict)
    accelerator: AcceleratorData | None = None

    @property
    def layout(self) -> MeshLayout:
        """How the ranks are arranged: as the `Accelerator` was told, else each with all of the model."""
        if self.accelerator is None:
            return MeshLayout.of_replicas(self.topology.world_size)
        return self.accelerator.layout

    def wait_for_everyone(self) -> None:
        """Block until every rank has come here; return at once in a single process."""
        if self.topology.world_size > 1:
            self.device_backend.barrier(self.device)


class _Current:
    """The objects of this process; ``gradient`` exists without a runtime, since loaders work without one."""

    runtime: Runtime | None = None
    gradient: GradientData = GradientData()
    lock = threading.RLock()


def has_runtime() -> bool:
    """Tell whether the runtime has been built."""
    return _Current.runtime is not None


def current_runtime() -> Runtime:
    """Return the runtime of this process.

    Raises:
        StateError: If neither a `PartialState` nor an `Accelerator` has been built yet.
    """
    if _Current.runtime is None:
        raise StateError(
            "The state of this process has not been built. Construct `Accelerator()` or `PartialState()` "
            "first."
        )
    return _Current.runtime


def current_gradient() -> GradientData:
    """Return the gradient state of this process, which exists from the start."""
    return _Current.gradient


def runtime_lock() -> threading.RLock:
    """Return the lock to hold while the runtime is looked up and built."""
    return _Current.lock


def install_runtime(runtime: Runtime) -> None:
    """Make ``runtime`` the one of this process."""
    _Current.runtime = runtime


def reset_gradient() -> None:
    """Forget accumulation settings and active loaders."""
    _Current.gradient = GradientData()
    if _Current.runtime is not None:
        _Current.runtime.gradient = _Current.gradient


def reset_runtime(*, keep_process_group: bool = False) -> None:
    """Forget everything about this process, so that the next `PartialState` starts anew.

    Args:
        keep_process_group: Leave the process group standing, for the next `PartialState` to take over.
            Otherwise the group is destroyed if accel set it up; one that the user set up is never touched.
    """
    from accel_state.process_group import end_owned_group

    _Current.runtime = None
    reset_gradient()
    if not keep_process_group:
        end_owned_group()
