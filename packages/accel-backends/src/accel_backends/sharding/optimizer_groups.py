"""The groups of an optimizer that steps sharded and replicated parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.distributed.tensor import DTensor


@contextmanager
def separate_groups(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Move the plain parameters of each group that has `DTensor`s too into a group with the same options.

    torch's ``foreach`` and ``fused`` steps refuse both in one list. Only for a step: between steps, groups are those
    that schedulers, scripts and saved states count on.
    """
    groups = optimizer.param_groups
    params = [group["params"] for group in groups]
    for group, mixed in zip(tuple(groups), params, strict=True):
        plain = [parameter for parameter in mixed if not isinstance(parameter, DTensor)]
        if 0 < len(plain) < len(mixed):
            group["params"] = [parameter for parameter in mixed if isinstance(parameter, DTensor)]
            groups.append({**group, "params": plain})
    try:
        yield
    finally:
        del groups[len(params) :]
        for group, mixed in zip(groups, params, strict=True):
            group["params"] = mixed
