"""Parameters made whole for a moment, where ZeRO 3 keeps a part of each on every rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def GatheredParameters(
    params: Iterable[torch.Tensor] | torch.Tensor,
    modifier_rank: int | None = None,
    fwd_module: torch.nn.Module | None = None,
    enabled: bool = True,
) -> Iterator[None]:
    """Make parameters whole in the block; nothing happens to those that ZeRO 3 does not shard.

    Every rank must enter the block.

    Args:
        params: Parameters, or one of them.
        modifier_rank: The rank whose changes all ranks receive at the end; None discards changes.
        fwd_module: The module whose forward uses them, where they are its own from elsewhere.
        enabled: False does nothing.
    """
    listed = [params] if isinstance(params, torch.Tensor) else list(params)
    if not enabled or not any(hasattr(param, "ds_id") for param in listed):
        yield
        return
    import deepspeed

    block: Any = deepspeed.zero.GatheredParameters(listed, modifier_rank=modifier_rank, fwd_module=fwd_module)
    with block:
        yield
