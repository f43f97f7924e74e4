"""Checks across ranks, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["are_the_same_tensors"]


def are_the_same_tensors(tensor: torch.Tensor) -> bool:
    """Whether the tensor is equal on all ranks.

    Every rank must call it, with the same shape, on any device; it blocks until all have.
    """
    import torch

    from accel_ops.collectives import gather

    rows = gather(tensor.unsqueeze(0))
    return all(torch.equal(row, rows[0]) for row in rows)
