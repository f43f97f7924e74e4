"""How models are sharded: what the user asked for, and what follows from it for a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy

from accel_state.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from accel_backends.plans.policies import UnitsPolicy


@dataclass(frozen=True, slots=True)
class FSDPConfig:
    """The settings of `FullyShardedDataParallelPlugin` in the terms of `fully_shard`, whatever version spelled them.

    Attributes:
        policy: The user's own; None: computed from the next two and the precision of the run.
        param_dtype: What the forward computes in; None: the dtype of the run.
        reduce_dtype: What gradients are reduced in; None: fp32 if the forward computes in another.
        offload: Where the shards are kept.
        reshard_after_forward: Free the gathered parameters between forward and backward; a number of ranks keeps them
            sharded over so many.
        shard_placement_fn: Returns along which dimension a parameter is sharded, as `fully_shard` takes it.
        units: The user's policy that chooses units; None: the plan of the model.
        parallel_plan: The user's own plan of the model; None: the model's.
        ignored_modules: Modules that stay unsharded, or a regular expression of their names.
        activation_checkpointing: Recompute the activations of each unit in the backward pass.
        activation_checkpointing_offload: Keep the inputs of units on the CPU.
        selective_checkpointing: Keep the results of attention and of every second matrix product.
        num_forward_prefetch: Units gathered ahead in the forward pass; 0 leaves it to torch.
        num_backward_prefetch: The same for the backward pass.
        files: Safetensors files of models on the meta device.
        init_module: Gives a module on the meta device its values, on rank 0.
        cpu_ram_efficient_loading: Libraries that load models load the weights on rank 0 alone.
        forward_methods: Methods that use parameters and are called in place of the forward.
    """

    policy: MixedPrecisionPolicy | None
    param_dtype: torch.dtype | None
    reduce_dtype: torch.dtype | None
    offload: OffloadPolicy
    reshard_after_forward: bool | int
    shard_placement_fn: Callable[[nn.Parameter], Any] | None
    units: UnitsPolicy | None
    parallel_plan: Any
    ignored_modules: Sequence[nn.Module] | str | None
    activation_checkpointing: bool
    activation_checkpointing_offload: bool
    selective_checkpointing: bool
    num_forward_prefetch: int
    num_backward_prefetch: int
    files: str | os.PathLike[str] | None
    init_module: Callable[[nn.Module], None] | None
    cpu_ram_efficient_loading: bool
    forward_methods: Sequence[str]


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """How each group of a model is sharded in a run.

    Attributes:
        mesh: One axis, over which parameters are cut; or two, of which the first holds copies.
        device: The device of this rank.
        policy: Types of parameters in computation and of gradients in reduction.
        offload: Where the shards are kept.
        casts_forward: The forward of a model runs under autocast and returns fp32; a policy of the user does it alone.
        reshard_after_forward: Free the gathered parameters between forward and backward; groups of the tail
            and the root keep theirs.
        has_master_weights: Store trainable parameters in fp32.
        expert_mesh: Like ``mesh``, for experts that are spread over ranks: those that hold the same ones.
        shard_placement_fn: Returns along which dimension a parameter is sharded; None: along the first.
    """

    mesh: DeviceMesh
    device: torch.device
    policy: MixedPrecisionPolicy
    offload: OffloadPolicy
    casts_forward: bool = False
    reshard_after_forward: bool | int = True
    has_master_weights: bool = False
    expert_mesh: DeviceMesh | None = None
    shard_placement_fn: Callable[[nn.Parameter], Any] | None = None

    @property
    def shard_device(self) -> torch.device:
        """Where the shards are kept."""
        return torch.device("cpu") if isinstance(self.offload, CPUOffloadPolicy) else self.device


def shard_settings(
    config: FSDPConfig,
    *,
    mesh: DeviceMesh,
    device: torch.device,
    dtype: torch.dtype | None,
    has_autocast: bool,
    expert_mesh: DeviceMesh | None = None,
) -> ShardSettings:
    """Return what follows from ``config`` in a run.

    Args:
        config: Its own policy of mixed precision wins over that of the run.
        mesh: Over which parameters are cut.
        device: The device of this rank.
        dtype: What the run computes in, None where nothing is cast; gradients are then reduced in fp32.
        has_autocast: Whether autocast casts inputs of operations, so that inputs of modules stay as they are.
        expert_mesh: Over which experts are cut, where they are spread over ranks.

    Raises:
        ConfigError: If ``reshard_after_forward`` is a number of ranks that does not divide those of the mesh.
    """
    policy = config.policy
    if policy is None:
        computed = config.param_dtype or dtype
        reduced = config.reduce_dtype or (None if computed is None else torch.float32)
        policy = MixedPrecisionPolicy(computed, reduced, None, not has_autocast)
    reshard, num_shards = config.reshard_after_forward, mesh.size(mesh.ndim - 1)
    if type(reshard) is int and num_shards % reshard and reshard < num_shards:
        raise ConfigError(
            f"`reshard_after_forward` is {reshard}, which does not divide the {num_shards} ranks that share "
            "parameters. Set it to a number that does, or to True or False."
        )
    return ShardSettings(
        mesh=mesh,
        device=device,
        policy=policy,
        offload=config.offload,
        casts_forward=config.policy is None and policy.param_dtype is not None,
        reshard_after_forward=reshard if type(reshard) is bool or reshard < num_shards else True,
        has_master_weights=policy.param_dtype is not None,
        expert_mesh=expert_mesh,
        shard_placement_fn=config.shard_placement_fn,
    )
