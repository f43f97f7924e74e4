"""The state, strategy, precision and weighted loss of a run, created from its configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accel.configuration import RunConfiguration
from accel_backends import (
    Precision,
    Strategy,
    StrategyContext,
    select_precision,
    select_strategy,
)
from accel_backends.stepping.weighted_loss import WeightedLoss
from accel_backends.strategies.selection import check_axes
from accel_state import AcceleratorState, current_runtime
from accel_state.enums import DynamoBackend
from accel_state.kwargs_handler import InitProcessGroupKwargs


def make_state(configuration: RunConfiguration, **arguments: Any) -> AcceleratorState:
    """Return the state of this process; the first call sets up the process group as `configuration` specifies.

    A plugin that has `before_device` is called first.

    Args:
        configuration: The configuration of the run.
        **arguments: Further arguments of `AcceleratorState`.
    """
    group = configuration.handlers.of(InitProcessGroupKwargs)
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


def make_precision(configuration: RunConfiguration, state: AcceleratorState) -> Precision:
    """Return the precision of forward and backward."""
    return select_precision(
        state.mixed_precision,
        device_backend=current_runtime().device_backend,
        handlers=configuration.handlers,
    )


def make_strategy(
    configuration: RunConfiguration,
    state: AcceleratorState,
    *,
    precision: Precision,
    make_loader: Callable[..., Any],
) -> Strategy:
    """Return the strategy, set up for this run; `make_loader` prepares its loaders.

    Raises:
        ConfigError: If the strategy does not support the configuration.
    """
    runtime, dynamo = current_runtime(), configuration.dynamo
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
            make_loader=make_loader,
            scheduling=configuration.scheduling,
            dynamo=None if dynamo.backend == DynamoBackend.NO else dynamo,
            parallelism=state.parallelism_config,
        )
    )
    check_axes(state.parallelism_config, strategy)
    return strategy


def make_weighted_loss(state: AcceleratorState) -> WeightedLoss:
    """Return the weighting of losses by their number of items, over the ranks with different items."""
    layout, mesh = current_runtime().layout, state.device_mesh
    group = None
    if mesh is not None and 1 < layout.num_loss_ranks < layout.world_size:
        group = mesh.get_group("loss")
    return WeightedLoss(num_ranks=layout.num_loss_ranks, group=group)
