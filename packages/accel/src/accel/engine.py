"""The state, strategy and weighted loss of a run, created from its configuration."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from accel.configuration import RunConfiguration
from accel_backends import Precision, Strategy, StrategyContext, select_strategy
from accel_backends.stepping.weighted_loss import WeightedLoss
from accel_backends.strategies.selection import check_axes
from accel_state import AcceleratorState, ParallelismConfig
from accel_state.enums import DynamoBackend
from accel_state.kwargs_handler import InitProcessGroupKwargs
from accel_state.runtime import Runtime


def make_state(configuration: RunConfiguration, **arguments: Any) -> AcceleratorState:
    """Return the state of this process; the first call sets up the process group as `configuration` specifies.

    A plugin that has `before_device` is called first.

    Args:
        configuration: The configuration of the run.
        **arguments: Other arguments of `AcceleratorState`.
    """
    group = configuration.handlers.get(InitProcessGroupKwargs)
    before_device = getattr(configuration.plugin, "before_device", None)
    if before_device is not None:
        before_device()
    return AcceleratorState(
        dynamo_plugin=configuration.dynamo,
        **configuration.plugins,
        parallelism_config=configuration.parallelism,
        **arguments,
        _from_accelerator=True,
        **(group.to_kwargs() if group is not None else {}),
    )


def make_strategy(
    configuration: RunConfiguration,
    parallelism: ParallelismConfig | None,
    *,
    runtime: Runtime,
    precision: Precision,
) -> Strategy:
    """Return the strategy, set up for this run.

    Raises:
        ConfigError: If the strategy does not support the configuration.
    """
    dynamo = configuration.dynamo
    strategy = select_strategy(
        topology=runtime.topology,
        plugin=configuration.plugin,
        layout=runtime.layout,
        vendor=runtime.device_backend.vendor,
    )
    strategy.setup(
        StrategyContext(
            runtime,
            precision=precision,
            handlers=configuration.handlers,
            plugin=configuration.plugin,
            device_placement=configuration.device_placement,
            scheduling=configuration.scheduling,
            dynamo=None if dynamo.backend == DynamoBackend.NO else dynamo,
            parallelism=parallelism,
        )
    )
    check_axes(parallelism, strategy)
    return strategy


def make_weighted_loss(runtime: Runtime, mesh: DeviceMesh | None) -> WeightedLoss:
    """Return the weighting of losses by their number of items, over the ranks with different items."""
    layout, backend = runtime.layout, runtime.device_backend
    num_ranks = layout.num_loss_ranks
    group = None
    if mesh is not None and 1 < num_ranks < layout.world_size:
        group = mesh.get_group("loss")
    # On the CPU, a value is read without a wait.
    keeps_tensors = runtime.device.type != "cpu" and backend.supports(torch.float64)
    return WeightedLoss(num_ranks=num_ranks, group=group, keeps_tensors=keeps_tensors)
