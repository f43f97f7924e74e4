"""The run, as a strategy gets it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from accel_backends.handlers.collection import Handlers
from accel_backends.plugins.dynamo import TorchDynamoPlugin
from accel_backends.precisions.precision import Precision
from accel_backends.scheduler import SchedulerUnit
from accel_state.gradient_state import GradientState, current_gradient
from accel_state.mesh_layout import MeshLayout
from accel_state.parallelism_config import ParallelismConfig
from accel_state.runtime import Runtime
from accel_state.topology import Topology


@dataclass(slots=True)
class SchedulerSettings:
    """How schedulers that are prepared afterwards follow their optimizers; see `AcceleratedScheduler`."""

    step_with_optimizer: bool = True
    split_batches: bool = False
    unit: SchedulerUnit = "process"


@dataclass(frozen=True, slots=True)
class StrategyContext:
    """The run, as a strategy gets it in `Strategy.setup`.

    Attributes:
        runtime: This process: topology, device, gradient state.
        precision: Converts models and scales losses.
        handlers: The user's kwargs handlers by class.
        plugin: The settings object of the strategy, None without one.
        device_placement: Whether objects are moved to the device by default.
        scheduling: How schedulers follow their optimizers.
        dynamo: How models are compiled, by a plugin that names a backend; None does not compile them.
        parallelism: The options of each axis of the layout, None by default.
    """

    runtime: Runtime
    precision: Precision
    handlers: Handlers = field(default_factory=Handlers)
    plugin: object | None = None
    device_placement: bool = True
    scheduling: SchedulerSettings = field(default_factory=SchedulerSettings)
    dynamo: TorchDynamoPlugin | None = None
    parallelism: ParallelismConfig | None = None

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self.runtime.device

    @property
    def topology(self) -> Topology:
        """The rank of this process, and the number of ranks."""
        return self.runtime.topology

    @property
    def layout(self) -> MeshLayout:
        """The layout of the ranks."""
        return self.runtime.layout

    @property
    def gradient(self) -> GradientState:
        """Whether gradients are synchronized in this micro-batch."""
        return current_gradient()
