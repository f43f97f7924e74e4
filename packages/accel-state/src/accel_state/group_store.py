"""The store of a process group, on every release of torch that we support."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store


def store_of(group: dist.ProcessGroup) -> Store:
    """Return the store over which the ranks of ``group`` found each other."""
    if not hasattr(dist.ProcessGroup, "get_group_store"):
        # torch 2.8. Delete this, and the function with it, when we require torch 2.9.
        store: Store = dist.distributed_c10d._get_process_group_store(group)
        return store
    return group.get_group_store()
