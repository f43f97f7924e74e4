"""How a model is flattened and sharded: what the plugin, the precision and the layout of the run say together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)

from accel_backends.plugins.fsdp import allocate
from accel_backends.sharding.settings import reduce_dtype_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from accel_backends.plugins.fsdp import FullyShardedDataParallelPlugin


@dataclass(frozen=True, slots=True)
class FlatSettings:
    """How each unit of a model is sharded; most are arguments of torch's `FullyShardedDataParallel`.

    Attributes:
        mesh: One axis, over which parameters are cut; or two, of which the first holds copies.
        device: The device of this rank.
        has_process_groups: Hand torch the groups of the mesh, as its local state dicts want it, not the mesh itself.
        init_module: Gives a module on the meta device its values; None: only rank 0 has them.
    """

    mesh: DeviceMesh
    device: torch.device
    strategy: ShardingStrategy
    mixed_precision: MixedPrecision
    cpu_offload: CPUOffload
    backward_prefetch: BackwardPrefetch | None
    forward_prefetch: bool
    limit_all_gathers: bool
    use_orig_params: bool
    has_process_groups: bool
    init_module: Callable[[nn.Module], None] | None = None

    @property
    def is_sharding(self) -> bool:
        """Whether a rank holds parts of parameters."""
        return self.strategy is not ShardingStrategy.NO_SHARD

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `FullyShardedDataParallel`."""
        groups: dict[str, Any] = {"device_mesh": self.mesh}
        if self.has_process_groups:
            inside_out = tuple(self.mesh.get_group(axis) for axis in reversed(range(self.mesh.ndim)))
            groups = {"process_group": inside_out if len(inside_out) > 1 else inside_out[0]}
        return {
            **groups,
            "sharding_strategy": self.strategy,
            "mixed_precision": self.mixed_precision,
            "cpu_offload": self.cpu_offload,
            "backward_prefetch": self.backward_prefetch,
            "forward_prefetch": self.forward_prefetch,
            "limit_all_gathers": self.limit_all_gathers,
            "use_orig_params": self.use_orig_params,
            "device_id": self.device,
        }


def flat_settings(
    plugin: FullyShardedDataParallelPlugin,
    *,
    strategy: ShardingStrategy,
    mesh: DeviceMesh,
    device: torch.device,
    dtype: torch.dtype | None,
) -> FlatSettings:
    """Return the settings of ``plugin``, whose values it has brought into the form of version 1.

    Args:
        plugin: Its own policy of mixed precision wins over that of the run.
        strategy: How parameters are cut, in the arrangement of the ranks.
        mesh: Over which parameters are cut.
        device: The device of this rank.
        dtype: What the run computes in, None where nothing is cast; gradients are then reduced in fp32.
    """
    policy = cast("MixedPrecision | None", plugin.chosen_policy)
    if policy is None:
        policy = MixedPrecision(param_dtype=dtype, reduce_dtype=reduce_dtype_of(plugin, dtype))
    return FlatSettings(
        mesh=mesh,
        device=device,
        strategy=strategy,
        mixed_precision=policy,
        # On the CPU they are there anyway, and torch would look for another device to compute on.
        cpu_offload=CPUOffload() if device.type == "cpu" else cast(CPUOffload, plugin.cpu_offload),
        backward_prefetch=cast("BackwardPrefetch | None", plugin.backward_prefetch),
        forward_prefetch=cast(bool, plugin.forward_prefetch),
        limit_all_gathers=plugin.limit_all_gathers,
        use_orig_params=cast(bool, plugin.use_orig_params),
        has_process_groups=plugin.state_dict_type is StateDictType.LOCAL_STATE_DICT,
        # Memory for the values of rank 0 is allocated in any case.
        init_module=None if plugin.param_init_fn is allocate else plugin.param_init_fn,
    )
