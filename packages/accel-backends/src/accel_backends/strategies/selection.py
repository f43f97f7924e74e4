"""Finds a strategy by its name, its plugin or the number of processes."""

from __future__ import annotations

from collections.abc import Callable

from accel_backends.strategies.protocol import Strategy
from accel_state.errors import ConfigError
from accel_state.mesh_layout import MeshLayout
from accel_state.registry import Registry
from accel_state.topology import Topology

STRATEGIES: Registry[Callable[[], Strategy]] = Registry("strategy", "accel.strategies")


def select_strategy(
    name: str | None = None,
    *,
    topology: Topology,
    plugin: object | None = None,
    layout: MeshLayout | None = None,
) -> Strategy:
    """Return a new strategy, not yet set up.

    Args:
        name: A member of the registry `accel.strategies`; if None, the plugin's, or else what fits the
            topology and the layout.
        topology: How many processes there are.
        plugin: A settings object whose class attribute ``strategy`` names the strategy that it configures.
        layout: How the processes are arranged; if None, each has the whole model.

    Raises:
        ConfigError: If nobody owns the name, or ``name`` and ``plugin`` want different strategies.
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
    return STRATEGIES.get(chosen or fitting)()
