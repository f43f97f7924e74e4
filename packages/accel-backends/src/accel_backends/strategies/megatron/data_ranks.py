"""Sums, means and rows over the ranks that read different samples, and those that share sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from accel_backends.strategies.megatron.packages import core
from accel_ops.nested.structures import recursively_apply


def average_over_data_ranks(losses: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the means of 0-dim tensors over the data ranks, ``(len(losses),)``. Communicates: data ranks."""
    means = torch.stack([loss.detach().float().reshape(()) for loss in losses])
    group = core("parallel_state").get_data_parallel_group()
    if group.size() > 1:
        dist.all_reduce(means, group=group)
        means /= group.size()
    return means


def avg_losses_across_data_parallel_group(losses: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the means of 0-dim tensors over the data ranks, ``(len(losses),)``. Communicates: data ranks."""
    return average_over_data_ranks(losses)


def gather_across_data_parallel_groups(tensor: Any) -> Any:
    """Return the rows of all data ranks, for each tensor in nested data. Communicates: data ranks."""
    group = core("parallel_state").get_data_parallel_group()

    def gather(one: torch.Tensor) -> torch.Tensor:
        rows = one.contiguous()[None] if one.ndim == 0 else one.contiguous()
        parts = [torch.empty_like(rows) for _ in range(group.size())]
        dist.all_gather(parts, rows, group=group)
        return torch.cat(parts)

    return recursively_apply(gather, tensor, error_on_other_type=True)


def sum_over_sequence_ranks(values: torch.Tensor) -> torch.Tensor:
    """Return the sums over the ranks that share each sequence, whose gradients are those of this rank's part."""
    group = core("parallel_state").get_context_parallel_group()
    if group.size() == 1:
        return values
    total = values.detach().clone()
    dist.all_reduce(total, group=group)
    return total + values - values.detach()
