"""How a model is sharded: what the plugin and the precision of the run say together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from accel_backends.plugins.fsdp import FullyShardedDataParallelPlugin


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """How each group of a model is sharded.

    Attributes:
        mesh: One axis, over which parameters are cut; or two, of which the first holds copies.
        device: The device of this rank.
        policy: Types of parameters in computation and of gradients in reduction.
        offload: Where the shards are kept.
        reshard_after_forward: Free the gathered parameters between forward and backward; groups of the tail
            and the root keep theirs.
        has_master_weights: Store trainable parameters in fp32.
        expert_mesh: Like ``mesh``, for experts that are spread over ranks: those that hold the same ones.
    """

    mesh: DeviceMesh
    device: torch.device
    policy: MixedPrecisionPolicy
    offload: OffloadPolicy
    reshard_after_forward: bool = True
    has_master_weights: bool = False
    expert_mesh: DeviceMesh | None = None

    @property
    def shard_device(self) -> torch.device:
        """Where the shards are kept."""
        return torch.device("cpu") if isinstance(self.offload, CPUOffloadPolicy) else self.device


def shard_settings(
    plugin: FullyShardedDataParallelPlugin,
    *,
    mesh: DeviceMesh,
    device: torch.device,
    dtype: torch.dtype | None,
    has_autocast: bool,
    expert_mesh: DeviceMesh | None = None,
) -> ShardSettings:
    """Return the settings of ``plugin``, whose values it has brought into the form of version 2.

    Args:
        plugin: Its own policy of mixed precision wins over that of the run.
        mesh: Over which parameters are cut.
        device: The device of this rank.
        dtype: What the run computes in, None where nothing is cast; gradients are then reduced in fp32.
        has_autocast: Whether autocast casts inputs of operations, so that inputs of modules stay as they are.
        expert_mesh: Over which experts are cut, where they are spread over ranks.
    """
    policy = cast("MixedPrecisionPolicy | None", plugin.chosen_policy)
    if policy is None:
        policy = MixedPrecisionPolicy(dtype, reduce_dtype_of(plugin, dtype), None, not has_autocast)
    return ShardSettings(
        mesh=mesh,
        device=device,
        policy=policy,
        offload=cast(OffloadPolicy, plugin.cpu_offload),
        reshard_after_forward=cast(bool, plugin.reshard_after_forward),
        has_master_weights=policy.param_dtype is not None,
        expert_mesh=expert_mesh,
    )


def reduce_dtype_of(plugin: FullyShardedDataParallelPlugin, dtype: torch.dtype | None) -> torch.dtype | None:
    """Return in what gradients are reduced where the run computes in ``dtype``: fp32 unless the plugin says more."""
    asked = cast("torch.dtype | None", plugin.reduce_dtype)
    return asked or (None if dtype is None else torch.float32)
