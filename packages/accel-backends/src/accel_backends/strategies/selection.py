"""Select a strategy by its name, its plugin or the number of processes, and check that it serves the layout."""

from __future__ import annotations

from collections.abc import Callable

from accel_backends.strategies.capabilities import Capabilities
from accel_backends.strategies.strategy import Strategy
from accel_state.devices import Vendor, find_vendor
from accel_state.errors import ConfigError
from accel_state.mesh_layout import MeshLayout
from accel_state.parallelism_config import ParallelismConfig
from accel_state.registry import Registry
from accel_state.topology import Topology

STRATEGIES: Registry[Callable[[], Strategy]] = Registry("strategy", "accel.strategies")
_OF_DEVICE = {"xla": "xla"}
"""Strategies by device type, for devices that DDP and FSDP of torch do not support."""


def select_strategy(
    name: str | None = None,
    *,
    topology: Topology,
    plugin: object | None = None,
    layout: MeshLayout | None = None,
    vendor: Vendor | None = None,
) -> Strategy:
    """Return a new strategy, not yet set up.

    Args:
        name: A member of the registry `accel.strategies`; None: the plugin's, by default the one for the
            topology and the layout.
        topology: The number of processes.
        plugin: A settings object whose class attribute ``strategy`` names the strategy that it configures.
        layout: The layout of the ranks; None: a replica of the model on every rank.
        vendor: The vendor of the device of this process; None: the CPU.

    Raises:
        ConfigError: If the name is unknown, ``name`` and ``plugin`` select different strategies, or the strategy does
            not train on the device.
    """
    of_plugin: str | None = getattr(plugin, "strategy", None)
    if name is not None and of_plugin is not None and name != of_plugin:
        raise ConfigError(
            f"`{type(plugin).__name__}` configures the strategy `{of_plugin}`, but `{name}` was asked for. "
            "Drop one of the two."
        )
    fitting = "ddp" if topology.world_size > 1 else "single"
    if layout is not None and (layout.size("cp", "sp", "tp") > 1 or layout.ep > 1):
        fitting = "fsdp2"
    chosen = name or of_plugin
    if layout is not None and layout.pp > 1 and chosen in (None, "fsdp2"):
        chosen = "pipeline"  # which shards its stages by the plugin of FSDP2
    vendor = vendor or find_vendor("cpu")
    strategy = STRATEGIES.get(chosen or _OF_DEVICE.get(vendor.name, fitting))()
    reason = why_not_on(vendor, strategy.capabilities)
    if reason is not None:
        raise ConfigError(
            f"The strategy `{strategy.name}` does not train on `{vendor.name}` devices. {reason}"
        )
    return strategy


def why_not_on(vendor: Vendor, capabilities: Capabilities) -> str | None:
    """Return why a strategy with these capabilities does not train on a vendor's devices, None if it does."""
    own, devices = _OF_DEVICE.get(vendor.name), capabilities.devices
    if devices is None and own is not None:
        return (
            f"There is the strategy `{own}` for them, which is chosen where no engine is asked for; it shards "
            "parameters by `FullyShardedDataParallelPlugin(xla_fsdp_v2=True)`."
        )
    if devices is not None and vendor.name not in devices:
        reasons = [find_vendor(name).not_installed_reason() for name in devices] if len(devices) == 1 else []
        return " ".join(
            [
                f"It trains on: {', '.join(sorted(devices))}.",
                *filter(None, reasons),
                "Run there, or leave out the plugin or the setting that asks for it.",
            ]
        )
    if capabilities.needs_collectives and vendor.collective_backend is None:
        return (
            "Its processes talk to each other, which torch does not offer there. Leave out the plugin or the setting "
            "that asks for it, so that one process trains the whole model, or pass `cpu=True` (`--cpu`)."
        )
    return None


def check_axes(config: ParallelismConfig | None, strategy: Strategy) -> None:
    """Check that the strategy supports the axes of `parallelism_config`, and its `sp_backend`.

    Raises:
        ConfigError: If not; names the axes.
    """
    supported = strategy.capabilities.mesh_axes
    active = [] if config is None else [*config.active_mesh_dims, *(["ep"] if config.ep_enabled else [])]
    idle = [axis for axis in active if axis not in supported]
    if idle:
        raise ConfigError(
            f"`parallelism_config` has {', '.join(f'`{axis}_size`' for axis in idle)} above 1, which the "
            f"strategy `{strategy.name}` does not do. It serves: {', '.join(sorted(supported))}. Use an engine that "
            "does, or set them to 1."
        )
    backend = strategy.capabilities.sp_backend
    if config is not None and config.sp_enabled and config.sp_backend != backend:
        raise ConfigError(
            f"`sp_backend` of `parallelism_config` is `{config.sp_backend}`, but the strategy `{strategy.name}` shares "
            f'sequences by `{backend}`. Pass `sp_backend="{backend}"`, or the plugin of the engine that is meant.'
        )
