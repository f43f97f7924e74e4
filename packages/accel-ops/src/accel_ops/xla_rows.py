"""Shard rows of XLA tensors over the devices of one process (SPMD)."""

from __future__ import annotations

import importlib
import math
from typing import Any

import torch

from accel_ops.nested.structures import recursively_apply

ROW_AXES = ("dp_replicate", "data", "fsdp")
"""Mesh axes whose devices have different rows."""


def row_axes(mesh: Any) -> tuple[str, ...]:
    """Return the axes of ``mesh`` that shard rows, in its order; none if its axes have no names."""
    return tuple(name for name in mesh.axis_names or () if name in ROW_AXES)


def spread_rows(data: Any, mesh: Any) -> None:
    """Shard the first dimension of all XLA tensors in nested data over ``mesh``, in place.

    Tensors whose rows do not divide, as in a shorter last batch, are replicated on every device.
    """
    axes = row_axes(mesh)
    sizes = dict(zip(mesh.axis_names, mesh.mesh_shape, strict=True))
    num_shards = math.prod(sizes[axis] for axis in axes)
    spmd = importlib.import_module("torch_xla.distributed.spmd")

    def shard(tensor: torch.Tensor) -> torch.Tensor:
        if (
            tensor.device.type == "xla"
            and tensor.dim()
            and tensor.shape[0]
            and tensor.shape[0] % num_shards == 0
        ):
            spmd.mark_sharding(tensor, mesh, (axes, *[None] * (tensor.dim() - 1)))
        return tensor

    recursively_apply(shard, data)
