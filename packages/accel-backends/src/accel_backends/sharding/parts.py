"""The local part of a sharded tensor, and the position of its pieces in the full tensor."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from accel_checkpoint.pieces import Piece, parts_of, runs_of


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the local part of a tensor, in the same memory."""
    with torch.no_grad():  # `to_local` is a function of autograd otherwise
        return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def local_pieces(tensor: torch.Tensor) -> list[Piece]:
    """Return the pieces of a tensor on this rank: views of its local part, with their offsets in the full tensor."""
    with torch.no_grad():
        parts = parts_of(tensor) if isinstance(tensor, DTensor) else [((0,) * tensor.dim(), tensor)]
        return [Piece("", part.detach(), tuple(tensor.shape), offset) for offset, part in parts]


def shard_like(parameter: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Shard a full tensor over the ranks like ``parameter``, which has its shape. No communication."""
    if not isinstance(parameter, DTensor):
        return whole
    local = whole
    for dim, runs in enumerate(runs_of(parameter)):
        kept = [local.narrow(dim, begin, size) for begin, size in runs]
        local = kept[0] if len(kept) == 1 else torch.cat(kept, dim)
    return wrap_like(parameter, local.clone(memory_format=torch.contiguous_format))


def empty_like_shard(parameter: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor without values, sharded over the ranks like ``parameter``."""
    return wrap_like(parameter, torch.empty_like(local_part(parameter), dtype=dtype))


def wrap_like(parameter: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """Return the tensor, sharded over the ranks like ``parameter``, whose local part is ``local``."""
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
