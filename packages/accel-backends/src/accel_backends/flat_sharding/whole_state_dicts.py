"""Lets a flattened model give and take whole state dicts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    StateDictType,
)


@contextmanager
def whole_state_dicts(root: FullyShardedDataParallel, *, rank0_only: bool) -> Iterator[None]:
    """Let the state dicts of a model and its optimizers be whole in the block, on all ranks or rank 0 only."""
    # Without an accelerator there is nothing to offload from, and torch 2.13 fails to.
    offload = root.compute_device != torch.device("cpu")
    with warnings.catch_warnings():
        # For other functions of torch, which need the optimizer's state to be of one model.
        warnings.filterwarnings("ignore", message=r"FSDP\.state_dict_type\(\)", category=FutureWarning)
        warnings.filterwarnings("ignore", message="When using ``NO_SHARD``", category=UserWarning)
        with FullyShardedDataParallel.state_dict_type(
            root,
            StateDictType.FULL_STATE_DICT,
            FullStateDictConfig(offload_to_cpu=offload, rank0_only=rank0_only),
            FullOptimStateDictConfig(offload_to_cpu=offload, rank0_only=rank0_only),
        ):
            yield
