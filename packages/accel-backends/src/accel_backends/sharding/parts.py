"""The part of a tensor that this rank holds, and where it lies in the whole."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from accel_checkpoint.pieces import pieces_of


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank holds of a tensor, in the same memory."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach()


def offset_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return where the part of this rank begins in the whole, along each dimension."""
    [piece] = pieces_of({"": tensor}, is_writer=True)
    return piece.offset


def new_like(parameter: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor without values, placed over the ranks like ``parameter``."""
    return placed_like(parameter, torch.empty_like(local_part(parameter), dtype=dtype))


def placed_like(parameter: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """Return the tensor, placed over the ranks like ``parameter``, of which this rank's part is ``local``."""
    if not isinstance(parameter, DTensor):
        return local
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
