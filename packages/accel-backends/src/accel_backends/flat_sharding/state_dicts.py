"""The form in which a flattened model gives and takes state dicts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
)


def has_sharded_state(root: FullyShardedDataParallel) -> bool:
    """Whether torch can give each rank its shards as `DTensor`s: for sharded parameters, and with a device mesh."""
    return root.sharding_strategy is not ShardingStrategy.NO_SHARD and root._device_mesh is not None


@contextmanager
def state_dicts(
    root: FullyShardedDataParallel, *, is_sharded: bool, rank0_only: bool = False
) -> Iterator[None]:
    """Make the state dicts of a model and its optimizers `DTensor`s or full tensors, on the CPU, in the block.

    With ``rank0_only`` full tensors are on rank 0 alone.
    """
    # Without an accelerator there is nothing to offload from, and torch 2.13 fails to.
    options = {"offload_to_cpu": root.compute_device != torch.device("cpu")}
    with warnings.catch_warnings():
        # For other functions of torch, which need the optimizer's state to be of one model.
        warnings.filterwarnings("ignore", message=r"FSDP\.state_dict_type\(\)", category=FutureWarning)
        warnings.filterwarnings("ignore", message="When using ``NO_SHARD``", category=UserWarning)
        with FullyShardedDataParallel.state_dict_type(
            root,
            StateDictType.SHARDED_STATE_DICT if is_sharded else StateDictType.FULL_STATE_DICT,
            ShardedStateDictConfig(**options)
            if is_sharded
            else FullStateDictConfig(**options, rank0_only=rank0_only),
            ShardedOptimStateDictConfig(**options) if is_sharded else FullOptimStateDictConfig(**options),
        ):
            yield
