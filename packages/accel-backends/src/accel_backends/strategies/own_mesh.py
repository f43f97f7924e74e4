"""Models that a library has spread over the ranks before: whether this run arranges the ranks alike."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

from torch import nn

from accel_state.errors import ConfigError
from accel_state.mesh_layout import MeshLayout

_SAME_BATCHES = ("pp", "cp", "sp", "tp")
"""Axes along which ranks do not read batches of their own; libraries call them as `MeshLayout` does."""
_OF_EXPERTS = ("ep", "efsdp", "edp_shard")
"""Axes of another view of the same ranks, for experts alone."""


def check_own_mesh(model: nn.Module, layout: MeshLayout, *, strategy: str, shards_parameters: bool) -> None:
    """Refuse a model that a library has spread over the ranks in another way than this run arranges them.

    Its ranks would read other batches than it expects, or nobody would average its gradients.

    Args:
        model: The model; without `DTensor`s it passes.
        layout: How the run arranges the ranks.
        strategy: What the strategy of the run is called.
        shards_parameters: Whether that leaves a model alone which is sharded already.

    Raises:
        ConfigError: Naming the axis and both sizes.
    """
    sizes = _own_axes(model)
    if not sizes or layout.world_size == 1:
        return
    spread = f"The {type(model).__name__} to prepare was spread over {_listed(sizes)} before"
    num_data_ranks = math.prod(size for axis, size in sizes.items() if axis not in _SAME_BATCHES)
    for axis, size in sizes.items():
        if axis in _SAME_BATCHES and size != getattr(layout, axis):
            asked = getattr(layout, axis)
            advice = f"Pass `parallelism_config=ParallelismConfig({axis}_size={size})`"
            if asked > 1:  # transformers 5.23 ignores `device_mesh`
                others = f"{axis}_size={asked}, fsdp_size={layout.world_size // asked}"
                advice = f"Load it with `distributed_config=DistributedConfig({others})`"
            raise ConfigError(
                f"{spread}: the {size} ranks of `{axis}` must read the same batches. This run gives each of "
                f"{layout.num_data_ranks} ranks batches of its own. {advice}, or load the model whole, without "
                "`tp_plan`, `device_mesh` or such sizes in `DistributedConfig`, and let `prepare` shard it."
            )
    if num_data_ranks != layout.num_data_ranks:
        raise ConfigError(
            f"{spread}, but in this run {layout.num_data_ranks} ranks read batches of their own, whose gradients "
            "it would not average. Let its mesh have them all, or load it whole and let `prepare` shard it."
        )
    if not shards_parameters:
        raise ConfigError(
            f"{spread}, and the strategy `{strategy}` trains whole models. Pass "
            "`fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2)`, which leaves it as it is, or load it whole."
        )


def has_own_mesh(model: nn.Module) -> bool:
    """Whether a library has spread a model over ranks, so that it averages gradients without a strategy."""
    return bool(_own_axes(model))


def _own_axes(model: nn.Module) -> dict[str, int]:
    """Return the axes above 1 of the meshes that the parameters of a model are spread over, and their sizes."""
    tensors = sys.modules.get("torch.distributed.tensor")
    if tensors is None:  # nobody has made any
        return {}
    meshes = {one.device_mesh: None for one in model.parameters() if isinstance(one, tensors.DTensor)}
    sizes: dict[str, int] = {}
    for mesh in meshes:
        names = mesh.mesh_dim_names or [f"axis {number}" for number in range(mesh.ndim)]
        sizes |= dict(zip(names, mesh.shape, strict=True))
    return {axis: size for axis, size in sizes.items() if size > 1 and axis not in _OF_EXPERTS}


def _listed(sizes: Mapping[str, int]) -> str:
    return " and ".join(f"{size} ranks (`{axis}`)" for axis, size in sizes.items())
