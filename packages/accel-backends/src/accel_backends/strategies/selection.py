"""Finds a strategy by its name, its plugin or the number of processes."""

from __future__ import annotations

from collections.abc import Callable

from accel_backends.strategies.protocol import Strategy
from accel_state.errors import ConfigError
from accel_state.mesh_layout import MeshLayout
from accel_state.registry import Registry
from accel_state.topology import Topology

STRATEGIES: Registry[Callable[[], Strategy]] = Registry("strategy", "accel.strategies")
_OF_DEVICE = {"xla": "xla"}
"""Strategies of the devices, by type, that torch's own ways to train in parallel do not reach."""


def select_strategy(
    name: str | None = None,
    *,
    topology: Topology,
    plugin: object | None = None,
    layout: MeshLayout | None = None,
    device_type: str = "cpu",
) -> Strategy:
    """Return a new strategy, not yet set up.

    Args:
        name: A member of the registry `accel.strategies`; if None, the plugin's, or else what fits the
            topology and the layout.
        topology: How many processes there are.
        plugin: A settings object whose class attribute ``strategy`` names the strategy that it configures.
        layout: How the processes are arranged; if None, each has the whole model.
        device_type: Type of the device of this process.

    Raises:
        ConfigError: If nobody owns the name, ``name`` and ``plugin`` want different strategies, or the strategy does
            not train on the device.
    """
    wanted: str | None = getattr(plugin, "strategy", None)
    if name is not None and wanted is not None and name != wanted:
        raise ConfigError(
            f"`{type(plugin).__name__}` configures the strategy `{wanted}`, but `{name}` was asked for. "
            "Drop one of the two."
        )
    fitting = "ddp" if topology.world_size > 1 else "single"
    if layout is not None and (layout.size("cp", "sp", "tp") > 1 or layout.ep > 1):
        fitting = "fsdp2"
    chosen = name or wanted
    if layout is not None and layout.pp > 1 and chosen in (None, "fsdp2"):
        chosen = "pipeline"  # whose stages are sharded as the plugin of version 2 says
    own = _OF_DEVICE.get(device_type)
    if own is None:
        return STRATEGIES.get(chosen or fitting)()
    strategy = STRATEGIES.get(chosen or own)()
    if device_type not in strategy.capabilities.own_devices:
        raise ConfigError(
            f"The strategy `{chosen}` does not train on `{device_type}` devices, for which there is the strategy "
            f"`{own}`. It is chosen where no engine is asked for; it shards parameters by "
            "`FullyShardedDataParallelPlugin(xla_fsdp_v2=True)`."
        )
    return strategy
