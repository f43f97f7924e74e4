"""When the gradients of a sharded model are reduced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributed.fsdp import FSDPModule

from accel_backends.sharding.whole_parameters import WholeParameters


@contextmanager
def unsynchronised(model: FSDPModule, whole: WholeParameters | None) -> Iterator[None]:
    """Let backward reduce no gradients until the block is left; each rank adds up whole ones."""
    model.set_requires_gradient_sync(False)
    if whole is not None:
        whole.is_syncing = False
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
        if whole is not None:
            whole.is_syncing = True


@contextmanager
def synchronised_in_shards(model: FSDPModule) -> Iterator[None]:
    """Let backward reduce gradients over the shards, and over the copies of the model only after the block."""
    model.set_requires_all_reduce(False)
    try:
        yield
    finally:
        model.set_requires_all_reduce(True)
