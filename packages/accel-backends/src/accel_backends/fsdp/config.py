"""How models are sharded: the settings of the user, in the types that `fully_shard` takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy

from accel_state.errors import ConfigError

if TYPE_CHECKING:
    from accel_backends.plans.policies import UnitsPolicy


@dataclass(frozen=True, slots=True)
class FSDPConfig:
    """The settings of `FullyShardedDataParallelPlugin` for a run, whatever version spelled them.

    Attributes:
        policy: Dtypes of parameters in computation and of gradients in reduction: the user's, or those of the run.
        casts_forward: The forward of a model runs under autocast and returns fp32; the user's policy does it alone.
        offload: Where the shards are kept.
        reshard_after_forward: Free the gathered parameters between forward and backward, except those of the tail and
            the root; a number of ranks keeps them sharded over so many.
        shard_placement_fn: Returns along which dimension a parameter is sharded; None: along the first.
        units: The user's policy that chooses units; None: the plan of the model.
        parallel_plan: The user's plan of the model; None: the model's.
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
        reduces_once: Reduce gradients in the last micro-batch of a window only.
        shard_output: Marks on XLA devices how the outputs of units are sharded; None: by rows.
    """

    policy: MixedPrecisionPolicy = field(default_factory=MixedPrecisionPolicy)
    casts_forward: bool = False
    offload: OffloadPolicy = field(default_factory=OffloadPolicy)
    reshard_after_forward: bool | int = True
    shard_placement_fn: Callable[[nn.Parameter], Any] | None = None
    units: UnitsPolicy | None = None
    parallel_plan: Any = None
    ignored_modules: Sequence[nn.Module] | str | None = None
    activation_checkpointing: bool = False
    activation_checkpointing_offload: bool = False
    selective_checkpointing: bool = False
    num_forward_prefetch: int = 0
    num_backward_prefetch: int = 0
    files: str | os.PathLike[str] | None = None
    init_module: Callable[[nn.Module], None] | None = None
    cpu_ram_efficient_loading: bool = False
    forward_methods: Sequence[str] = ()
    reduces_once: bool = False
    shard_output: Callable[[Any, Any], None] | None = None

    def check_resharding(self, num_shards: int) -> None:
        """Check a number of ranks in ``reshard_after_forward`` against those that share parameters.

        Raises:
            ConfigError: If it does not divide them.
        """
        number = self.reshard_after_forward
        if number < num_shards and num_shards % number:
            raise ConfigError(
                f"`reshard_after_forward` is {number}, which does not divide the {num_shards} ranks that share "
                "parameters. Set it to a number that does, or to True or False."
            )

    def shard_device(self, device: torch.device) -> torch.device:
        """Return where a rank that computes on ``device`` keeps its shards."""
        return torch.device("cpu") if isinstance(self.offload, CPUOffloadPolicy) else device
