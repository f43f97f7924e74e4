"""A module computes with its local shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def local_parameters(module: nn.Module, local_of: Callable[[Any], torch.Tensor]) -> Iterator[None]:
    """Replace each `DTensor` parameter of ``module`` by its local shard in the block.

    Args:
        module: The module.
        local_of: Returns the shard of this rank.
    """
    sharded: list[tuple[nn.Module, str, Any]] = [
        (owner, key, parameter)
        for owner in module.modules()
        for key, parameter in owner._parameters.items()
        if parameter is not None
    ]
    for owner, key, parameter in sharded:
        owner._parameters[key] = local_of(parameter)  # type: ignore[assignment]
    try:
        yield
    finally:
        for owner, key, parameter in sharded:
            owner._parameters[key] = parameter
